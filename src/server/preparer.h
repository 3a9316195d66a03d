// Threads that read the bodies of requests, which takes seconds for the largest: bounded, fair to
// clients, and so that small bodies never wait for large ones. What a body says is not its matter.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "server/fair_share.h"

namespace convene::server {

// Of which there are as many as may wait.
enum class Lack { kBodies, kBytes };

// The reading of one body.
struct Reading {
  std::string client;
  size_t num_bytes = 0;
  std::function<void()> work;             // on a thread of the preparer's
  std::function<void(Lack lack)> refuse;  // within Push, instead: there was no room for it
};

class Preparer {
 public:
  // Of each thread: it reads bodies of at most so many bytes. So a body waits for larger ones only
  // if it is as large as those of their thread.
  static constexpr std::array kMostBytes = {size_t{64} << 10, size_t{1} << 20,
                                            std::numeric_limits<size_t>::max()};

  // Of the largest size, that should find room in `capacity_bytes`.
  static constexpr size_t kLargestBodies = 8;

  // At most `capacity` bodies of together `capacity_bytes` wait; one that is the only one waits
  // however large it is.
  Preparer(int capacity, size_t capacity_bytes)
      : capacity_(capacity), capacity_bytes_(capacity_bytes) {}
  ~Preparer() { Stop(); }

  Status Start();

  // Where there is no room, the client with the most bytes that wait gives up its newest body, for
  // which `refuse` is called: this one, if the client is the same.
  void Push(Reading reading);

  // Waits for what is being read; what waits is dropped.
  void Stop();

 private:
  struct Client {
    std::deque<Reading> waiting = {};  // oldest first, not empty
    size_t num_bytes = 0;
  };
  using Clients = std::map<std::string, Client>;

  void Run(size_t most_bytes);
  // Of at most so many bytes, of the client whose turn it is.
  std::optional<Reading> TakeNext(size_t most_bytes);
  std::optional<Lack> FindLack() const;
  // Of the client with the most bytes, or of `client` where that has as many.
  Reading TakeNewestOfLargest(const std::string& client);
  Reading TakeOut(Clients::iterator client, std::deque<Reading>::iterator reading);

  const int capacity_;
  const size_t capacity_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Client> clients_;
  FairShare share_;  // in bytes; of clients with bodies that wait or are read
  int num_waiting_ = 0;
  size_t num_waiting_bytes_ = 0;
  bool is_stopped_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace convene::server
