#include "comm/threads/thread_group.h"

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "comm/sleeping_poll.h"

namespace convene::comm {
namespace {

// Where a message's sender and receiver meet. Shared by the two: whoever ends last destroys it.
struct Meeting {
  std::atomic<const std::byte*> offered = nullptr;  // set once by the sender
  std::atomic<bool> is_taken = false;               // set once by the receiver
};

// Which message: of the ticket-th exchange on a queue in which something goes between these two
// ranks, in either direction. So, as with MPI, an exchange need be entered by those alone that
// something goes to or comes from.
struct Address {
  int queue;
  int from;
  int to;
  int64_t ticket;
  auto operator<=>(const Address&) const = default;
};

// The two messages between a rank and its peer in one exchange.
struct Meetings {
  std::shared_ptr<Meeting> out;
  std::shared_ptr<Meeting> in;
};

// The meetings for which one side has come and the other has not, and what ranks have entered
// without anything for each other. A rank enters all exchanges of a name or none, so two ranks that
// both enter them count alike which one it is; MPI would let such a fault pass until the next
// message between the two. On the control queue each rank names what it does itself, so names
// differ there and are not compared.
class MeetingPlace {
 public:
  // Two ranks that must agree about what goes between them in exchange `what`: something does.
  Meetings Meet(int queue, int rank, int peer, size_t out_size, size_t in_size,
                const std::string& what) {
    const std::scoped_lock lock(mutex_);
    Side& own = sides_[{queue, rank, peer}];
    const Side& other = sides_[{queue, peer, rank}];
    const int entered_before = CountOf(own.skipped, what);
    CHECK(other.ticket != own.ticket || CountOf(other.skipped, what) <= entered_before,
          "in `{}` rank {} has something to exchange with rank {}, which has nothing", what, rank,
          peer);
    const int64_t ticket = own.ticket++;
    own.skipped.clear();
    own.last = what;
    own.entered_before_last = entered_before;
    return {.out = Come({queue, rank, peer, ticket}, out_size, what),
            .in = Come({queue, peer, rank, ticket}, in_size, what)};
  }

  // The same where a rank thinks that nothing does; it waits for nobody.
  void Skip(int queue, int rank, int peer, const std::string& what) {
    const std::scoped_lock lock(mutex_);
    Side& own = sides_[{queue, rank, peer}];
    const Side& other = sides_[{queue, peer, rank}];
    int& entered = own.skipped[what];
    CHECK(other.ticket != own.ticket + 1 || other.last != what ||
              other.entered_before_last != entered,
          "in `{}` rank {} has something to exchange with rank {}, which has nothing", what, peer,
          rank);
    ++entered;
  }

 private:
  struct FirstComer {
    std::shared_ptr<Meeting> meeting;
    size_t size = 0;
    std::string what = {};
  };
  // What a rank has done towards a peer on a queue.
  struct Side {
    int64_t ticket = 0;                  // of the next exchange in which something goes
    std::map<std::string, int> skipped;  // since the last one: how often each was entered
    std::string last = {};               // that one
    int entered_before_last = 0;         // and how often it had been skipped before
  };

  static int CountOf(const std::map<std::string, int>& counts, const std::string& what) {
    const auto found = counts.find(what);
    return found == counts.end() ? 0 : found->second;
  }

  // For each side of each message once; `size` and `what` must be the same on both.
  std::shared_ptr<Meeting> Come(const Address& address, size_t size, const std::string& what) {
    const auto [entry, is_first] = waiting_.try_emplace(address);
    if (is_first) {
      entry->second = {std::make_shared<Meeting>(), size, what};
      return entry->second.meeting;
    }
    CHECK(entry->second.what == what || address.queue == kControlQueue,
          "ranks disagree about what goes from rank {} to rank {}: `{}` or `{}`", address.from,
          address.to, entry->second.what, what);
    CHECK(entry->second.size == size,
          "in `{}` ranks disagree about the message from rank {} to rank {}: {} or {} bytes", what,
          address.from, address.to, entry->second.size, size);
    std::shared_ptr<Meeting> meeting = std::move(entry->second.meeting);
    waiting_.erase(entry);
    return meeting;
  }

  std::mutex mutex_;
  std::map<Address, FirstComer> waiting_;
  std::map<std::array<int, 3>, Side> sides_;  // by queue, rank and peer
};

class ThreadExchange : public Exchange {
 public:
  ~ThreadExchange() override {
    SleepingPoll poll;
    while (!Test()) poll.Pause();
  }

  void Send(std::shared_ptr<Meeting> meeting, std::span<const std::byte> bytes) {
    meeting->offered.store(bytes.data(), std::memory_order_release);
    sends_.push_back(std::move(meeting));
  }

  void Receive(std::shared_ptr<Meeting> meeting, std::span<std::byte> bytes) {
    receives_.push_back({std::move(meeting), bytes});
  }

  bool Test() override {
    std::erase_if(receives_, [](const Receiving& receive) {
      const std::byte* data = receive.meeting->offered.load(std::memory_order_acquire);
      if (data == nullptr) return false;
      std::memcpy(receive.bytes.data(), data, receive.bytes.size());
      receive.meeting->is_taken.store(true, std::memory_order_release);
      return true;
    });
    std::erase_if(sends_, [](const std::shared_ptr<Meeting>& meeting) {
      return meeting->is_taken.load(std::memory_order_acquire);
    });
    return receives_.empty() && sends_.empty();
  }

 private:
  struct Receiving {
    std::shared_ptr<Meeting> meeting;
    std::span<std::byte> bytes;
  };
  std::vector<std::shared_ptr<Meeting>> sends_;
  std::vector<Receiving> receives_;
};

class ThreadGroup : public Group {
 public:
  ThreadGroup(int rank, int size, std::shared_ptr<MeetingPlace> place)
      : rank_(rank), size_(size), place_(std::move(place)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  std::unique_ptr<Exchange> StartMessages(int queue,
                                          std::span<const std::span<const std::byte>> send,
                                          std::span<const std::span<std::byte>> receive,
                                          std::string what) override {
    auto exchange = std::make_unique<ThreadExchange>();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      if (send[peer].empty() && receive[peer].empty()) {
        if (queue != kControlQueue) place_->Skip(queue, rank_, peer, what);
        continue;
      }
      // An empty message comes to the meeting too if there is one the other way, so that its size
      // is compared, but nobody waits.
      auto [out, in] =
          place_->Meet(queue, rank_, peer, send[peer].size(), receive[peer].size(), what);
      if (!send[peer].empty()) exchange->Send(std::move(out), send[peer]);
      if (!receive[peer].empty()) exchange->Receive(std::move(in), receive[peer]);
    }
    return exchange;
  }

  const int rank_;
  const int size_;
  const std::shared_ptr<MeetingPlace> place_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> MakeThreadGroups(int num_ranks) {
  CHECK(num_ranks >= 1);
  auto place = std::make_shared<MeetingPlace>();
  std::vector<std::unique_ptr<Group>> groups;
  for (int rank = 0; rank < num_ranks; ++rank)
    groups.push_back(std::make_unique<ThreadGroup>(rank, num_ranks, place));
  return groups;
}

void RunOnThreads(int num_ranks, const std::function<void(Group&)>& work) {
  const std::vector<std::unique_ptr<Group>> groups = MakeThreadGroups(num_ranks);
  std::vector<std::jthread> threads;
  for (const auto& group : groups) threads.emplace_back([&] { work(*group); });
}

}  // namespace convene::comm
