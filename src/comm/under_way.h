// Which exchanges of this process are under way and which ranks they wait for, kept where a signal
// handler and a watchdog can read it, so that the end of a job says what it was doing.
// Process-wide, since signals are; exchanges beyond the 64th at a time are not recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace convene::comm {

// Recorded for as long as it lives.
class UnderWay {
 public:
  explicit UnderWay(std::string_view what);
  ~UnderWay();
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

  // Whether it waits for `rank`; of ranks from 256 on nothing is recorded.
  void SetWaiting(int rank, bool is_waiting);

 private:
  int entry_;  // none if negative
};

// Writes to `text` (at most `size` bytes, ended by 0): "in `dispatch of layer 3`, which waits for
// rank 1", of the oldest exchange; "not in a collective (the last was `x`)" without one. May be
// called by a signal handler.
void DescribeUnderWay(char* text, size_t size);

// The oldest exchange that waits for `rank`; empty without one.
std::string UnderWayWith(int rank);

// Another rank whose process this host runs.
struct Neighbour {
  int rank = 0;
  int pid = 0;
};

// From now on SIGTERM ends this process with a line on standard error that says what was under way
// and which neighbours are gone: a launcher that sees a rank die sends it to the others.
// `rank_name`: "rank 0 (host)". Of more than 256 neighbours the first are looked at.
void EndWithMessageOnSigterm(std::string_view rank_name, std::span<const Neighbour> neighbours);

// From then on a first SIGTERM from the process that started this one, while no neighbour is gone,
// does nothing: rank 0 has got it, too, and ends the others when its work is done.
void LeaveLaunchersSigtermToRankZero();

// For processes that take SIGTERM themselves: whether neighbours are gone, and the end that SIGTERM
// would have been.
bool AnyNeighbourIsGone();
void EndAsBySigterm();

// What each rank does, by rank, for those lines; "" where there is nothing to say. Names of more
// than 15 letters are cut. `own_name`: as rank_name above.
void NameRoles(std::string_view own_name, std::span<const std::string> names);

// The end has been told already: SIGTERM ends the process without a word.
void EndSilentlyOnSigterm();

}  // namespace convene::comm
