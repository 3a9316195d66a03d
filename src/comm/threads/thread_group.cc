#include "comm/threads/thread_group.h"

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

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

// The meetings for which one side has come and the other has not.
class MeetingPlace {
 public:
  // For each side of each message once; `size` and `what` must be the same on both.
  std::shared_ptr<Meeting> Come(const Address& address, size_t size, const std::string& what) {
    const std::scoped_lock lock(mutex_);
    const auto [entry, is_first] = waiting_.try_emplace(address);
    if (is_first) {
      entry->second = {std::make_shared<Meeting>(), size, what};
      return entry->second.meeting;
    }
    CHECK(entry->second.what == what,
          "ranks disagree about what goes from rank {} to rank {}: `{}` or `{}`", address.from,
          address.to, entry->second.what, what);
    CHECK(entry->second.size == size,
          "in `{}` ranks disagree about the message from rank {} to rank {}: {} or {} bytes", what,
          address.from, address.to, entry->second.size, size);
    std::shared_ptr<Meeting> meeting = std::move(entry->second.meeting);
    waiting_.erase(entry);
    return meeting;
  }

 private:
  struct FirstComer {
    std::shared_ptr<Meeting> meeting;
    size_t size = 0;
    std::string what = {};
  };
  std::mutex mutex_;
  std::map<Address, FirstComer> waiting_;
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
      : rank_(rank), size_(size), place_(std::move(place)) {
    for (std::vector<int64_t>& tickets : next_tickets_) tickets.resize(static_cast<size_t>(size));
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  std::unique_ptr<Exchange> StartMessages(int queue,
                                          std::span<const std::span<const std::byte>> send,
                                          std::span<const std::span<std::byte>> receive,
                                          std::string what) override {
    auto exchange = std::make_unique<ThreadExchange>();
    std::vector<int64_t>& tickets = next_tickets_[queue];
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || (send[peer].empty() && receive[peer].empty())) continue;
      const int64_t ticket = tickets[peer]++;
      // An empty message comes to the meeting too if there is one the other way, so that its size
      // is compared, but nobody waits.
      auto out = place_->Come({queue, rank_, peer, ticket}, send[peer].size(), what);
      if (!send[peer].empty()) exchange->Send(std::move(out), send[peer]);
      auto in = place_->Come({queue, peer, rank_, ticket}, receive[peer].size(), what);
      if (!receive[peer].empty()) exchange->Receive(std::move(in), receive[peer]);
    }
    return exchange;
  }

  const int rank_;
  const int size_;
  const std::shared_ptr<MeetingPlace> place_;
  std::vector<int64_t> next_tickets_[kNumQueues];  // by queue and peer
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
