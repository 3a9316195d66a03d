#include "kernels/measure_streaming.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/median.h"
#include "hardware/huge_buffer.h"
#include "kernels/grouped_gemm.h"
#include "kernels/invented_experts.h"
#include "kernels/invented_rows.h"

namespace convene::kernels {
namespace {

constexpr int kCols = 2048;
constexpr int kRowsOfExpert = 2048;
constexpr int kInt4Group = 32;
constexpr int kLeastRounds = 5;       // of all ways
constexpr int kConfirmingRounds = 9;  // at least, of the usual way and the one that won
constexpr double kFaster = 0.96;      // of the time
constexpr double kAsGood = 0.02;

ActivationFormat ActivationsOf(WeightFormat format) {
  return format == WeightFormat::kF32    ? ActivationFormat::kF32
         : format == WeightFormat::kBf16 ? ActivationFormat::kBf16
                                         : ActivationFormat::kInt8;
}

std::vector<PackedMatrix> ExpertsOf(WeightFormat format, size_t bytes_at_once) {
  return InventExperts(
      {.format = format, .group = kInt4Group, .rows = kRowsOfExpert, .cols = kCols}, bytes_at_once);
}

// Products of one format with so many rows of each expert, with rows, results and scratch in memory
// that its owner keeps.
class Products {
 public:
  Products(WeightFormat format, int rows, size_t bytes_at_once, MemoryWalk& weights,
           std::span<std::byte> memory)
      : activations_(ActivationsOf(format)),
        experts_(ExpertsOf(format, bytes_at_once)),
        weights_(weights) {
    for (size_t i = 0; i < experts_.size(); ++i) {
      groups_.push_back({&experts_[i], static_cast<int>(i) * rows, rows});
    }
    rows_ = memory.data();
    if (activations_ == ActivationFormat::kInt8) {
      EndInventedRows(memory.data(), experts_.size() * static_cast<size_t>(rows), kCols);
    }
    out_ = memory.data() + RowBytes(rows, experts_.size());
    scratch_ = out_ + OutBytes(rows, experts_.size());
  }

  static size_t MemoryBytes(size_t bytes_at_once, int num_threads) {
    // int4 has the most experts.
    const size_t num_experts = ExpertsOf(WeightFormat::kInt4, bytes_at_once).size();
    return RowBytes(kStreamingRows.back(), num_experts) +
           OutBytes(kStreamingRows.back(), num_experts) +
           static_cast<size_t>(kGemmScratchBytes) * static_cast<size_t>(num_threads);
  }

  // On the next of the weights.
  double Seconds(hardware::ThreadPool& pool, KernelSet kernels, const PanelStreaming& way,
                 SecondsNow now) {
    PlaceNext(experts_, weights_);
    const StreamingChoice streaming(way);
    kernels.streaming = &streaming;
    const double start = now();
    RunGroupedGemm(kernels, pool,
                   {.groups = groups_,
                    .activations = activations_,
                    .rows = rows_,
                    .row_stride = ActivationRowBytes(activations_, kCols),
                    .out = out_,
                    .out_stride = int64_t{4} * kRowsOfExpert,
                    .scratch = scratch_});
    return now() - start;
  }

 private:
  static size_t RowBytes(int rows, size_t num_experts) {
    return static_cast<size_t>(ActivationRowBytes(ActivationFormat::kF32, kCols)) *
           static_cast<size_t>(rows) * num_experts;
  }
  static size_t OutBytes(int rows, size_t num_experts) {
    return size_t{4} * kRowsOfExpert * static_cast<size_t>(rows) * num_experts;
  }

  ActivationFormat activations_;
  std::vector<PackedMatrix> experts_;
  MemoryWalk& weights_;
  std::vector<GemmGroup> groups_;
  const std::byte* rows_ = nullptr;
  std::byte* out_ = nullptr;
  std::byte* scratch_ = nullptr;
};

// The usual way, then those of kStreamingWays that act otherwise than all before them.
std::vector<PanelStreaming> DistinctWays(const KernelSet& kernels, WeightFormat format, int rows,
                                         const PanelStreaming& usual) {
  const auto acting = [&](const PanelStreaming& way) {
    return kernels.acting(way, format, ActivationsOf(format), rows);
  };
  std::vector<PanelStreaming> ways = {usual};
  for (const PanelStreaming& way : kStreamingWays) {
    const bool is_new = std::none_of(ways.begin(), ways.end(), [&](const PanelStreaming& other) {
      return acting(other) == acting(way);
    });
    if (is_new) ways.push_back(way);
  }
  return ways;
}

// Times of some ways in rounds, in each of which every way has its turn.
class Rounds {
 public:
  Rounds(std::vector<PanelStreaming> ways, hardware::ThreadPool& pool, const KernelSet& kernels,
         SecondsNow now)
      : ways_(std::move(ways)), pool_(pool), kernels_(kernels), now_(now), ratios_(ways_.size()) {}

  // Rounds until `end_s`, and as many more up to `last_s` as `least` takes. False: there is no time
  // for them; a product is known to take `product_s` at least.
  bool Run(Products& products, int least, double end_s, double last_s, double product_s) {
    double longest_s = product_s * static_cast<double>(ways_.size());
    for (;;) {
      const double start = now_();
      const int rounds_to_do = least - num_rounds();
      if (rounds_to_do <= 0 && start + longest_s > end_s) return true;
      if (start + longest_s * std::max(rounds_to_do, 1) > last_s) return false;
      std::vector<double> seconds(ways_.size());
      for (size_t i = 0; i < ways_.size(); ++i) {
        // Another one begins each time, lest one always come after the same other.
        const size_t way = (i + static_cast<size_t>(num_rounds())) % ways_.size();
        seconds[way] = products.Seconds(pool_, kernels_, ways_[way], now_);
      }
      for (size_t way = 0; way < ways_.size(); ++way) {
        ratios_[way].push_back(seconds[way] / seconds.front());
      }
      shortest_product_s_ =
          std::min(shortest_product_s_, *std::min_element(seconds.begin(), seconds.end()));
      longest_s = std::max(longest_s, now_() - start);
    }
  }

  double shortest_product_s() const { return shortest_product_s_; }

  int num_rounds() const { return static_cast<int>(ratios_.front().size()); }
  const PanelStreaming& way(size_t index) const { return ways_[index]; }
  const std::vector<double>& ratios(size_t index) const { return ratios_[index]; }

  // The first of the ways that are about as good as the best, if they are faster than the usual
  // one, which is number 0.
  std::optional<size_t> Winner() const {
    double least = 1;
    for (const std::vector<double>& ratios : ratios_) {
      if (IsFaster(ratios, kFaster)) least = std::min(least, Median(ratios));
    }
    for (size_t index = 1; index < ways_.size(); ++index) {
      if (IsFaster(ratios_[index], kFaster) && Median(ratios_[index]) <= least + kAsGood) {
        return index;
      }
    }
    return std::nullopt;
  }

 private:
  std::vector<PanelStreaming> ways_;
  hardware::ThreadPool& pool_;
  const KernelSet& kernels_;
  SecondsNow now_;
  std::vector<std::vector<double>> ratios_;  // by way: its time to the usual one's
  double shortest_product_s_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::string Describe(const StreamingChange& change) {
  return fmt::format(
      "{} with {} row{}: {} instead of {}: {:.2f} of the time, faster in {} of {} rounds",
      Name(change.format), change.rows, change.rows == 1 ? "" : "s", Describe(change.chosen),
      Describe(change.usual), change.time_ratio, change.num_wins, change.num_rounds);
}

Result<MeasuredStreaming> MeasureStreaming(hardware::ThreadPool& pool, const KernelSet& kernels,
                                           double budget_s, std::span<const std::byte> weights,
                                           size_t bytes_at_once, SecondsNow now) {
  const double end_s = now() + budget_s;
  const Result<hardware::HugeBuffer> memory = hardware::HugeBuffer::Allocate(
      Products::MemoryBytes(bytes_at_once, pool.size()), "measuring how panels are best read");
  if (!memory) return memory.error();
  // Small numbers in all formats, so that nothing becomes a denormal product.
  std::memset(memory->data(), 0x3c, memory->size_bytes());
  MemoryWalk walk(weights);

  MeasuredStreaming measured{.choice = StreamingChoice::OfCpu(), .changes = {}};
  int num_left = static_cast<int>(kStreamingFormats.size() * kStreamingRows.size());
  double product_s = std::numeric_limits<double>::infinity();  // the shortest so far
  for (const WeightFormat format : kStreamingFormats) {
    for (size_t rows_idx = 0; rows_idx < kStreamingRows.size(); ++rows_idx) {
      const int rows = kStreamingRows[rows_idx];
      const double start_s = now();
      const double last_s = start_s + (end_s - start_s) / num_left--;
      const PanelStreaming usual = measured.choice.For(format, rows);
      Products products(format, rows, bytes_at_once, walk, memory->bytes());
      Rounds all(DistinctWays(kernels, format, rows, usual), pool, kernels, now);
      const double least_s = std::isinf(product_s) ? 0 : product_s;
      const bool is_enough =
          all.Run(products, kLeastRounds, (start_s + last_s) / 2, last_s, least_s);
      product_s = std::min(product_s, all.shortest_product_s());
      if (!is_enough) continue;
      const std::optional<size_t> winner = all.Winner();
      if (winner) {
        Rounds again({usual, all.way(*winner)}, pool, kernels, now);
        if (!again.Run(products, kConfirmingRounds, last_s, last_s, product_s)) continue;
        const std::vector<double>& ratios = again.ratios(1);
        if (IsFaster(ratios, kFaster)) {
          measured.choice.Set(format, rows_idx, all.way(*winner));
          measured.changes.push_back(
              {.format = format,
               .rows = rows,
               .usual = usual,
               .chosen = all.way(*winner),
               .time_ratio = Median(ratios),
               .num_wins = static_cast<int>(
                   std::count_if(ratios.begin(), ratios.end(), [](double r) { return r < 1; })),
               .num_rounds = again.num_rounds()});
        }
      }
      ++measured.num_measured;
    }
  }
  return measured;
}

}  // namespace convene::kernels
