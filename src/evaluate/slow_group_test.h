// A link for tests on threads of one process: each rank sends at a rate of its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "comm/group.h"

namespace convene::evaluate {

// A group whose exchanges end no sooner than a link of this rate lets them.
class SlowGroup : public comm::Group {
 public:
  SlowGroup(comm::Group& group, double bytes_per_second)
      : group_(group), bytes_per_second_(bytes_per_second) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

 private:
  class SlowExchange : public comm::Exchange {
   public:
    SlowExchange(std::unique_ptr<comm::Exchange> exchange,
                 std::chrono::steady_clock::time_point end)
        : exchange_(std::move(exchange)), end_(end) {}
    bool Test() override { return exchange_->Test() && std::chrono::steady_clock::now() >= end_; }

   private:
    std::unique_ptr<comm::Exchange> exchange_;
    std::chrono::steady_clock::time_point end_;
  };

  std::unique_ptr<comm::Exchange> StartMessages(int queue,
                                                std::span<const std::span<const std::byte>> send,
                                                std::span<const std::span<std::byte>> receive,
                                                std::string what) override {
    size_t bytes = 0;
    for (int to = 0; to < size(); ++to) bytes += to == rank() ? 0 : send[to].size();
    const std::chrono::duration<double> seconds(static_cast<double>(bytes) / bytes_per_second_);
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::steady_clock::duration>(seconds);
    return std::make_unique<SlowExchange>(
        group_.StartAllToAll(queue, send, receive, std::move(what)), end);
  }

  comm::Group& group_;
  double bytes_per_second_;
};

}  // namespace convene::evaluate
