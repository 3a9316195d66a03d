#include "comm/reduce.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace convene::comm {
namespace {

constexpr size_t kNumbersAtOnce = 4096;  // of each rank; the sums stay in the first-level cache

// parts (num_ranks, count) is summed over ranks along the tree, into `sum`; spoils `parts`.
void SumOverRanks(float* parts, int num_ranks, size_t count, float* sum) {
  for (size_t first = 0; first < count; first += kNumbersAtOnce) {
    const size_t width = std::min(kNumbersAtOnce, count - first);
    for (int distance = 1; distance < num_ranks; distance *= 2) {
      for (int rank = 0; rank + distance < num_ranks; rank += 2 * distance) {
        float* left = parts + rank * count + first;
        const float* right = parts + (rank + distance) * count + first;
        for (size_t i = 0; i < width; ++i) left[i] += right[i];
      }
    }
    std::memcpy(sum + first, parts + first, width * sizeof(float));
  }
}

class ReduceScatterExchange : public Exchange {
 public:
  ReduceScatterExchange(Group& group, int queue, std::span<const float> addends,
                        std::span<const size_t> counts, std::span<float> sum, std::string what)
      : num_ranks_(group.size()),
        sum_(sum),
        parts_(std::make_unique_for_overwrite<float[]>(num_ranks_ * sum.size())) {
    CHECK(std::ssize(counts) == num_ranks_ && counts[group.rank()] == sum.size());
    CHECK(std::accumulate(counts.begin(), counts.end(), size_t{0}) == addends.size());
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    for (int peer = 0; peer < num_ranks_; ++peer) {
      send.push_back(std::as_bytes(addends.first(counts[peer])));
      addends = addends.subspan(counts[peer]);
      float* part = parts_.get() + peer * sum.size();
      receive.push_back(std::as_writable_bytes(std::span(part, sum.size())));
    }
    exchange_ = group.StartAllToAll(queue, send, receive, std::move(what));
  }

  bool Test() override {
    if (is_done_) return true;
    if (!exchange_->Test()) return false;
    SumOverRanks(parts_.get(), num_ranks_, sum_.size(), sum_.data());
    is_done_ = true;
    return true;
  }

 private:
  const int num_ranks_;
  const std::span<float> sum_;
  const std::unique_ptr<float[]> parts_;  // (num_ranks, sum.size())
  std::unique_ptr<Exchange> exchange_;
  bool is_done_ = false;
};

class AllReduceExchange : public Exchange {
 public:
  AllReduceExchange(Group& group, int queue, std::span<float> values, std::string what)
      : group_(group), queue_(queue), values_(values), what_(std::move(what)) {
    const auto start = [&](int part) { return EvenPartStart(values.size(), group.size(), part); };
    for (int part = 0; part < group.size(); ++part)
      counts_.push_back(start(part + 1) - start(part));
    const size_t first = start(group.rank());
    own_ = values.subspan(first, counts_[group.rank()]);
    exchange_ = StartReduceScatter(group, queue, values, counts_, own_, what_ + ", scattering");
  }

  bool Test() override {
    if (is_done_) return true;
    if (!exchange_->Test()) return false;
    if (!is_gathering_) {
      is_gathering_ = true;
      std::vector<size_t> sizes = counts_;
      for (size_t& bytes : sizes) bytes *= sizeof(float);
      exchange_ = StartAllGather(group_, queue_, sizes, std::as_writable_bytes(values_),
                                 what_ + ", gathering");
      if (!exchange_->Test()) return false;
    }
    is_done_ = true;
    return true;
  }

 private:
  Group& group_;
  const int queue_;
  const std::span<float> values_;
  const std::string what_;
  std::vector<size_t> counts_;
  std::span<float> own_;
  std::unique_ptr<Exchange> exchange_;
  bool is_gathering_ = false;
  bool is_done_ = false;
};

}  // namespace

std::unique_ptr<Exchange> StartReduceScatter(Group& group, int queue,
                                             std::span<const float> addends,
                                             std::span<const size_t> counts, std::span<float> sum,
                                             std::string what) {
  return std::make_unique<ReduceScatterExchange>(group, queue, addends, counts, sum,
                                                 std::move(what));
}

std::unique_ptr<Exchange> StartAllReduce(Group& group, int queue, std::span<float> values,
                                         std::string what) {
  return std::make_unique<AllReduceExchange>(group, queue, values, std::move(what));
}

std::unique_ptr<Exchange> StartAllGather(Group& group, int queue, std::span<const size_t> counts,
                                         std::span<std::byte> gathered, std::string what) {
  CHECK(std::ssize(counts) == group.size());
  CHECK(std::accumulate(counts.begin(), counts.end(), size_t{0}) == gathered.size());
  std::vector<std::span<std::byte>> receive;
  for (const size_t count : counts) {
    receive.push_back(gathered.first(count));
    gathered = gathered.subspan(count);
  }
  const std::vector<std::span<const std::byte>> send(group.size(), receive[group.rank()]);
  return group.StartAllToAll(queue, send, receive, std::move(what));
}

void ReduceScatter(Group& group, int queue, std::span<const float> addends,
                   std::span<const size_t> counts, std::span<float> sum, std::string what) {
  group.Wait(*StartReduceScatter(group, queue, addends, counts, sum, std::move(what)));
}

void AllReduce(Group& group, int queue, std::span<float> values, std::string what) {
  group.Wait(*StartAllReduce(group, queue, values, std::move(what)));
}

void AllGatherInPlace(Group& group, int queue, std::span<const size_t> counts,
                      std::span<std::byte> gathered, std::string what) {
  group.Wait(*StartAllGather(group, queue, counts, gathered, std::move(what)));
}

size_t EvenPartStart(size_t total, int num_parts, int i) {
  return total / num_parts * i + std::min<size_t>(total % num_parts, i);
}

}  // namespace convene::comm
