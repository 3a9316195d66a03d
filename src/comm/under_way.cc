#include "comm/under_way.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace convene::comm {
namespace {

constexpr int kNumEntries = 64;
constexpr int kMaxRanks = 256;

struct Entry {
  std::atomic<uint64_t> age = 0;  // by which the oldest is found; 0: free or being written
  std::atomic<bool> is_used = false;
  std::atomic<uint64_t> waiting[kMaxRanks / 64] = {};
  char what[96] = {};
};

// A signal handler has nowhere else to look.
Entry entries[kNumEntries];
std::atomic<uint64_t> next_age = 1;
char last_what[96] = {};
char own_name[160] = "a rank";
std::atomic<bool> is_silent = false;
std::atomic<bool> leaves_sigterm = false;
char role_names[kMaxRanks][16] = {};
Neighbour neighbours_here[kMaxRanks];
int num_neighbours = 0;

// Text in a buffer of fixed size, put together by what a signal handler may call.
class Text {
 public:
  Text(char* text, size_t size) : text_(text), left_(size - 1) {}

  void Add(const char* part) {
    const size_t length = std::min(std::strlen(part), left_);
    std::memcpy(text_, part, length);
    text_ += length;
    left_ -= length;
    *text_ = 0;
  }

  void Add(int number) {
    char digits[12];
    char* first = digits + sizeof(digits) - 1;
    *first = 0;
    do *--first = static_cast<char>('0' + number % 10);
    while ((number /= 10) > 0);
    Add(first);
  }

 private:
  char* text_;
  size_t left_;
};

void CopyName(std::string_view from, char* to, size_t size) {
  const size_t length = std::min(from.size(), size - 1);
  std::memcpy(to, from.data(), length);
  to[length] = 0;
}

bool Waits(const Entry& entry, int rank) {
  return (entry.waiting[rank / 64].load() >> (rank % 64) & 1) != 0;
}

const Entry* Oldest(int waiting_for) {  // any, if negative
  const Entry* oldest = nullptr;
  uint64_t oldest_age = UINT64_MAX;
  for (const Entry& entry : entries) {
    const uint64_t age = entry.age.load();
    if (age == 0 || age >= oldest_age || (waiting_for >= 0 && !Waits(entry, waiting_for))) continue;
    oldest = &entry;
    oldest_age = age;
  }
  return oldest;
}

void AddWaiting(const Entry& entry, Text* text) {
  int num_ranks = 0;
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if (!Waits(entry, rank)) continue;
    text->Add(num_ranks == 0 ? ", which waits for rank " : num_ranks < 8 ? ", " : ", ...");
    if (num_ranks == 8) return;
    text->Add(rank);
    if (role_names[rank][0] != 0) {
      text->Add(" (");
      text->Add(role_names[rank]);
      text->Add(")");
    }
    ++num_ranks;
  }
}

// Whether a process has ended, also one that nobody has asked about yet (Z); not one that was ended
// like this one, which OnSigterm tells by its status.
bool IsGone(int pid) {
  if (kill(pid, 0) != 0) return errno == ESRCH;
  char path[32];
  Text text(path, sizeof(path));
  text.Add("/proc/");
  text.Add(pid);
  text.Add("/stat");
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno == ENOENT;
  char line[1024] = {};
  const bool is_read = read(file, line, sizeof(line) - 1) > 0;
  close(file);
  const char* name_end = std::strrchr(line, ')');  // "123 (convene) Z ..."
  if (!is_read || name_end == nullptr || std::strlen(name_end) <= 2 || name_end[2] != 'Z') {
    return false;
  }
  char ended_alike[12];  // the last field of all, as wait() gives it
  Text status(ended_alike, sizeof(ended_alike));
  status.Add(" ");
  status.Add((128 + SIGTERM) << 8);
  return std::strstr(line, ended_alike) == nullptr;
}

void AddGone(Text* text) {
  bool is_first = true;
  for (int i = 0; i < num_neighbours; ++i) {
    if (!IsGone(neighbours_here[i].pid)) continue;
    text->Add(is_first ? "; gone from this host: rank " : ", rank ");
    const int rank = neighbours_here[i].rank;
    text->Add(rank);
    text->Add(" (");
    if (rank < kMaxRanks && role_names[rank][0] != 0) {
      text->Add(role_names[rank]);
      text->Add(", ");
    }
    text->Add("pid ");
    text->Add(neighbours_here[i].pid);
    text->Add(")");
    is_first = false;
  }
}

void End() {
  if (!is_silent.exchange(true)) {
    char line[960];
    char under_way[320];
    char gone[256] = {};
    Text gone_text(gone, sizeof(gone));
    AddGone(&gone_text);  // first, before others end by the same signal
    DescribeUnderWay(under_way, sizeof(under_way));
    Text text(line, sizeof(line));
    text.Add("convene: ");
    text.Add(own_name);
    text.Add(
        ": the launcher ends the job (SIGTERM: another rank has ended, or somebody stopped it) "
        "while this rank was ");
    text.Add(under_way);
    text.Add(gone);
    text.Add("\n");
    static_cast<void>(!write(STDERR_FILENO, line, std::strlen(line)));
  }
  _exit(128 + SIGTERM);
}

void OnSigterm(int, siginfo_t* info, void*) {
  const bool is_launchers = info->si_code == SI_USER && info->si_pid == getppid();
  if (is_launchers && leaves_sigterm.exchange(false) && !AnyNeighbourIsGone()) return;
  End();
}

}  // namespace

UnderWay::UnderWay(std::string_view what) : entry_(-1) {
  for (int i = 0; i < kNumEntries && entry_ < 0; ++i)
    if (!entries[i].is_used.exchange(true)) entry_ = i;
  if (entry_ < 0) return;
  CopyName(what, entries[entry_].what, sizeof(entries[entry_].what));
  entries[entry_].age.store(next_age++);
}

UnderWay::~UnderWay() {
  if (entry_ < 0) return;
  Entry& entry = entries[entry_];
  entry.age.store(0);
  CopyName(entry.what, last_what, sizeof(last_what));
  for (std::atomic<uint64_t>& word : entry.waiting) word.store(0);
  entry.is_used.store(false);
}

void UnderWay::SetWaiting(int rank, bool is_waiting) {
  if (entry_ < 0 || rank >= kMaxRanks) return;
  std::atomic<uint64_t>& word = entries[entry_].waiting[rank / 64];
  const uint64_t bit = uint64_t{1} << (rank % 64);
  is_waiting ? word.fetch_or(bit) : word.fetch_and(~bit);
}

void DescribeUnderWay(char* buffer, size_t size) {
  Text text(buffer, size);
  if (const Entry* oldest = Oldest(-1)) {
    text.Add("in `");
    text.Add(oldest->what);
    text.Add("`");
    AddWaiting(*oldest, &text);
  } else if (last_what[0] != 0) {
    text.Add("not in a collective (the last was `");
    text.Add(last_what);
    text.Add("`)");
  } else {
    text.Add("not in a collective yet");
  }
}

std::string UnderWayWith(int rank) {
  const Entry* oldest = rank < kMaxRanks ? Oldest(rank) : nullptr;
  return oldest == nullptr ? "" : oldest->what;
}

void EndWithMessageOnSigterm(std::string_view rank_name, std::span<const Neighbour> neighbours) {
  CopyName(rank_name, own_name, sizeof(own_name));
  num_neighbours = static_cast<int>(std::min<size_t>(neighbours.size(), kMaxRanks));
  std::copy_n(neighbours.begin(), num_neighbours, neighbours_here);
  struct sigaction action = {};
  action.sa_sigaction = OnSigterm;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  CHECK(sigaction(SIGTERM, &action, nullptr) == 0);
}

void LeaveLaunchersSigtermToRankZero() { leaves_sigterm.store(true); }

bool AnyNeighbourIsGone() {
  const auto is_gone = [](const Neighbour& one) { return IsGone(one.pid); };
  return std::any_of(neighbours_here, neighbours_here + num_neighbours, is_gone);
}

void EndAsBySigterm() { End(); }

void NameRoles(std::string_view own, std::span<const std::string> names) {
  CopyName(own, own_name, sizeof(own_name));
  for (size_t rank = 0; rank < std::min<size_t>(names.size(), kMaxRanks); ++rank) {
    CopyName(names[rank], role_names[rank], sizeof(role_names[rank]));
  }
}

void EndSilentlyOnSigterm() { is_silent.store(true); }

}  // namespace convene::comm
