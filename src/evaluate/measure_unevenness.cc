#include "evaluate/measure_unevenness.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "base/median.h"
#include "comm/from_rank_zero.h"

namespace convene::evaluate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kEvenBytes = size_t{1} << 18;  // from each rank to each other one
constexpr int kMostRanks = 4;                   // that send or receive; the others only take part
constexpr int kRounds = 5;
constexpr double kMostSeconds = 1;
// Exchanges in a row: a network may let a burst through faster than it goes on.
constexpr int kMostExchanges = 16;
constexpr double kSecondsOfRow = 0.02;

class Exchanges {
 public:
  explicit Exchanges(comm::Group& group)
      : group_(group), num_active_(std::min(group.size(), kMostRanks)) {
    // Far from each other, so that they are on several hosts where there are several.
    for (int i = 0; i < num_active_; ++i) active_.push_back(i * group.size() / num_active_);
    const size_t bytes = kEvenBytes * static_cast<size_t>(num_active_);
    out_.resize(bytes);
    in_.resize(bytes);
  }

  int num_active() const { return num_active_; }

  // Of so many exchanges, until all ranks are through with them.
  double Seconds(bool is_even, int count) {
    const auto num_ranks = static_cast<size_t>(group_.size());
    std::vector<std::span<const std::byte>> send(num_ranks);
    std::vector<std::span<std::byte>> receive(num_ranks);
    const int mine = group_.rank();
    // Rank 0 alone sends what all would.
    const size_t bytes = is_even ? kEvenBytes : kEvenBytes * static_cast<size_t>(num_active_);
    const bool is_active = std::ranges::find(active_, mine) != active_.end();
    for (int i = 0; is_active && i < num_active_; ++i) {
      const int other = active_[static_cast<size_t>(i)];
      if (other == mine) continue;
      const size_t place = is_even ? static_cast<size_t>(i) * kEvenBytes : 0;
      if (is_even || mine == 0) {
        send[static_cast<size_t>(other)] = std::span(out_).subspan(place, bytes);
      }
      if (is_even || other == 0) {
        receive[static_cast<size_t>(other)] = std::span(in_).subspan(place, bytes);
      }
    }
    group_.Barrier("looking at the link");
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) {
      const auto exchange = group_.StartAllToAll(0, send, receive, "looking at the link");
      while (!exchange->Test()) {
      }
    }
    group_.Barrier("looking at the link");
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  comm::Group& group_;
  int num_active_;
  std::vector<int> active_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

}  // namespace

double MeasureUnevenness(comm::Group& group) {
  if (group.size() == 1) return 0;
  constexpr const char* kWhat = "agreeing on the link";
  Exchanges exchanges(group);
  exchanges.Seconds(/*is_even=*/false, 1);  // opens connections
  const double one = exchanges.Seconds(/*is_even=*/true, 1);
  const int count = comm::FromRankZero(
      group, std::clamp(static_cast<int>(kSecondsOfRow / std::max(one, 1e-6)), 1, kMostExchanges),
      kWhat);
  std::vector<double> longer;
  const auto start = Clock::now();
  const auto is_over = [&] {
    const std::chrono::duration<double> so_far = Clock::now() - start;
    return comm::FromRankZero(group, so_far.count() > kMostSeconds, kWhat);
  };
  for (int round = 0; round < kRounds && (round == 0 || !is_over()); ++round) {
    const double even = exchanges.Seconds(/*is_even=*/true, count);
    const double uneven = exchanges.Seconds(/*is_even=*/false, count);
    longer.push_back(uneven / even - 1);
  }
  const double unevenness = Median(std::move(longer)) / (exchanges.num_active() - 1);
  return comm::FromRankZero(group, std::clamp(unevenness, 0.0, 1.0), kWhat);
}

}  // namespace convene::evaluate
