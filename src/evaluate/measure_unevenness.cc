#include "evaluate/measure_unevenness.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include "base/median.h"

namespace convene::evaluate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kEvenBytes = size_t{1} << 18;  // from each rank to each other one
constexpr int kRounds = 5;
// Exchanges in a row: a network may let a burst through faster than it goes on.
constexpr int kMostExchanges = 16;
constexpr double kSecondsOfRow = 0.02;

class Exchanges {
 public:
  explicit Exchanges(comm::Group& group)
      : group_(group),
        num_others_(static_cast<size_t>(group.size()) - 1),
        out_(kEvenBytes * (num_others_ + 1)),
        in_(kEvenBytes * (num_others_ + 1) * (num_others_ + 1)) {}

  // Of so many exchanges, until all ranks are through with them.
  double Seconds(bool is_even, int count) {
    const size_t num_ranks = num_others_ + 1;
    // Rank 0 alone sends what all would.
    const size_t bytes = is_even ? kEvenBytes : kEvenBytes * num_ranks;
    std::vector<std::span<const std::byte>> send(num_ranks);
    std::vector<std::span<std::byte>> receive(num_ranks);
    const auto mine = static_cast<size_t>(group_.rank());
    for (size_t other = 0; other < num_ranks; ++other) {
      if (other == mine) continue;
      if (is_even || mine == 0) send[other] = std::span(out_).first(bytes);
      if (is_even || other == 0) {
        receive[other] = std::span(in_).subspan(bytes * (is_even ? other : 0), bytes);
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

  // Rank 0's.
  template <typename T>
  T Agreed(T value) {
    std::vector<std::byte> told(sizeof(T));
    std::memcpy(told.data(), &value, sizeof(T));
    group_.Broadcast(0, &told, "agreeing on the link");
    std::memcpy(&value, told.data(), sizeof(T));
    return value;
  }

 private:
  comm::Group& group_;
  size_t num_others_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

}  // namespace

double MeasureUnevenness(comm::Group& group) {
  if (group.size() == 1) return 0;
  Exchanges exchanges(group);
  exchanges.Seconds(/*is_even=*/false, 1);  // opens connections
  const double one = exchanges.Seconds(/*is_even=*/true, 1);
  const int count = exchanges.Agreed(
      std::clamp(static_cast<int>(kSecondsOfRow / std::max(one, 1e-6)), 1, kMostExchanges));
  std::vector<double> longer;
  for (int round = 0; round < kRounds; ++round) {
    const double even = exchanges.Seconds(/*is_even=*/true, count);
    const double uneven = exchanges.Seconds(/*is_even=*/false, count);
    longer.push_back(uneven / even - 1);
  }
  const double unevenness = Median(std::move(longer)) / (group.size() - 1);
  return exchanges.Agreed(std::clamp(unevenness, 0.0, 1.0));
}

}  // namespace convene::evaluate
