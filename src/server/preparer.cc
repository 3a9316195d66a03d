#include "server/preparer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/start_thread.h"

namespace convene::server {
namespace {

// That reading a body of no bytes counts as, so that many small ones have their price.
constexpr int64_t kBytesOfEach = 1024;

}  // namespace

Status Preparer::Start() {
  for (const size_t most_bytes : kMostBytes) {
    Result<std::jthread> thread = StartThread(
        fmt::format("thread {} of {} that read requests", threads_.size() + 1, kMostBytes.size()),
        [this, most_bytes] { Run(most_bytes); });
    if (!thread) return thread.error();
    threads_.push_back(*std::move(thread));
  }
  return {};
}

std::optional<Lack> Preparer::FindLack() const {
  if (num_waiting_ <= 1) return std::nullopt;
  if (num_waiting_ > capacity_) return Lack::kBodies;
  if (num_waiting_bytes_ > capacity_bytes_) return Lack::kBytes;
  return std::nullopt;
}

void Preparer::Push(Reading reading) {
  const std::string client = reading.client;
  std::vector<std::pair<Reading, Lack>> refused;
  {
    const std::scoped_lock lock(mutex_);
    share_.Enter(client);
    ++num_waiting_;
    num_waiting_bytes_ += reading.num_bytes;
    clients_[client].num_bytes += reading.num_bytes;
    clients_[client].waiting.push_back(std::move(reading));
    while (const std::optional<Lack> lack = FindLack()) {
      refused.emplace_back(TakeNewestOfLargest(client), *lack);
    }
  }
  changed_.notify_all();  // not every thread takes every body
  for (const auto& [each, lack] : refused) each.refuse(lack);
}

Reading Preparer::TakeNewestOfLargest(const std::string& client) {
  const auto size_of = [](const Client& each) {
    return std::pair(each.num_bytes, each.waiting.size());
  };
  auto largest = std::ranges::max_element(clients_, {},
                                          [&](const auto& each) { return size_of(each.second); });
  const auto own = clients_.find(client);
  if (own != clients_.end() && size_of(own->second) == size_of(largest->second)) largest = own;
  Reading newest = TakeOut(largest, std::prev(largest->second.waiting.end()));
  share_.Leave(newest.client);
  return newest;
}

Reading Preparer::TakeOut(Clients::iterator client, std::deque<Reading>::iterator reading) {
  Reading taken = std::move(*reading);
  client->second.waiting.erase(reading);
  client->second.num_bytes -= taken.num_bytes;
  --num_waiting_;
  num_waiting_bytes_ -= taken.num_bytes;
  if (client->second.waiting.empty()) clients_.erase(client);
  return taken;
}

std::optional<Reading> Preparer::TakeNext(size_t most_bytes) {
  const auto fits = [&](const Reading& reading) { return reading.num_bytes <= most_bytes; };
  auto chosen = clients_.end();
  for (auto client = clients_.begin(); client != clients_.end(); ++client) {
    if (std::ranges::none_of(client->second.waiting, fits)) continue;
    if (chosen == clients_.end() || share_.PlaceOf(client->first) < share_.PlaceOf(chosen->first)) {
      chosen = client;
    }
  }
  if (chosen == clients_.end()) return std::nullopt;
  Reading next = TakeOut(chosen, std::ranges::find_if(chosen->second.waiting, fits));
  share_.TakeTurn(next.client, static_cast<int64_t>(next.num_bytes) + kBytesOfEach);
  return next;
}

void Preparer::Run(size_t most_bytes) {
  for (;;) {
    std::optional<Reading> reading;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        if (!is_stopped_) reading = TakeNext(most_bytes);
        return is_stopped_ || reading;
      });
    }
    if (!reading) return;
    reading->work();
    const std::scoped_lock lock(mutex_);
    share_.Leave(reading->client);
  }
}

void Preparer::Stop() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
  threads_.clear();
}

}  // namespace convene::server
