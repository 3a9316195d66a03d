#include "kernels/measure_streaming.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/median.h"
#include "hardware/huge_buffer.h"
#include "kernels/grouped_gemm.h"
#include "kernels/invented_rows.h"

namespace convene::kernels {
namespace {

constexpr int kCols = 2048;
constexpr int kRowsOfExpert = 2048;
constexpr int kInt4Group = 32;
constexpr int kLeastRounds = 3;
constexpr double kFaster = 0.98;  // of the time

ActivationFormat ActivationsOf(WeightFormat format) {
  return format == WeightFormat::kF32    ? ActivationFormat::kF32
         : format == WeightFormat::kBf16 ? ActivationFormat::kBf16
                                         : ActivationFormat::kInt8;
}

// An expert that `weight_bytes` hold: one of fewer rows where a whole one is larger.
PackedMatrix ExpertOf(WeightFormat format, size_t weight_bytes) {
  PackedMatrix expert{.format = format, .group = kInt4Group, .rows = kRowsOfExpert, .cols = kCols};
  if (expert.size_bytes() <= weight_bytes) return expert;
  const size_t panel_bytes = expert.panel(0).size_bytes();
  CHECK(panel_bytes <= weight_bytes, "{} bytes of weights, and {} of a panel", weight_bytes,
        panel_bytes);
  expert.rows = static_cast<int>(weight_bytes / panel_bytes) * kPanelRows;
  return expert;
}

// Products of one format with so many rows of each expert, on memory that its owner keeps.
class Products {
 public:
  Products(WeightFormat format, int rows, size_t weight_bytes, std::span<std::byte> memory)
      : activations_(ActivationsOf(format)), expert_(ExpertOf(format, weight_bytes)) {
    const size_t num_experts = weight_bytes / expert_.size_bytes();
    experts_.assign(num_experts, expert_);
    for (size_t i = 0; i < num_experts; ++i) {
      experts_[i].data = memory.data() + i * expert_.size_bytes();
      groups_.push_back({&experts_[i], static_cast<int>(i) * rows, rows});
    }
    std::byte* behind_weights = memory.data() + weight_bytes;
    rows_ = behind_weights;
    if (activations_ == ActivationFormat::kInt8) {
      EndInventedRows(behind_weights, num_experts * static_cast<size_t>(rows), kCols);
    }
    out_ = behind_weights + RowBytes(rows, num_experts);
    scratch_ = out_ + OutBytes(rows, num_experts);
  }

  static size_t MemoryBytes(size_t weight_bytes, int num_threads) {
    // int4 has the most experts.
    const size_t num_experts =
        weight_bytes / ExpertOf(WeightFormat::kInt4, weight_bytes).size_bytes();
    return weight_bytes + RowBytes(kStreamingRows.back(), num_experts) +
           OutBytes(kStreamingRows.back(), num_experts) +
           static_cast<size_t>(kGemmScratchBytes) * static_cast<size_t>(num_threads);
  }

  double Seconds(hardware::ThreadPool& pool, KernelSet kernels,
                 const StreamingChoice& streaming) const {
    kernels.streaming = &streaming;
    const auto start = std::chrono::steady_clock::now();
    RunGroupedGemm(kernels, pool,
                   {.groups = groups_,
                    .activations = activations_,
                    .rows = rows_,
                    .row_stride = ActivationRowBytes(activations_, kCols),
                    .out = out_,
                    .out_stride = int64_t{4} * kRowsOfExpert,
                    .scratch = scratch_});
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
  PackedMatrix expert_;
  std::vector<PackedMatrix> experts_;
  std::vector<GemmGroup> groups_;
  const std::byte* rows_ = nullptr;
  std::byte* out_ = nullptr;
  std::byte* scratch_ = nullptr;
};

}  // namespace

Result<StreamingChoice> MeasureStreaming(hardware::ThreadPool& pool, const KernelSet& kernels,
                                         double budget_s, size_t weight_bytes) {
  weight_bytes = weight_bytes / 64 * 64;  // rows lie behind them, at lines
  Result<hardware::HugeBuffer> memory = hardware::HugeBuffer::Allocate(
      Products::MemoryBytes(weight_bytes, pool.size()), "measuring how panels are best read");
  if (!memory) return memory.error();
  // Small numbers in all formats, so that nothing becomes a denormal product.
  std::memset(memory->data(), 0x3c, memory->size_bytes());

  StreamingChoice best = StreamingChoice::OfCpu();
  const double budget_of_each_s =
      budget_s / static_cast<double>(kStreamingFormats.size() * kStreamingRows.size());
  for (const WeightFormat format : kStreamingFormats) {
    for (size_t rows_idx = 0; rows_idx < kStreamingRows.size(); ++rows_idx) {
      const Products products(format, kStreamingRows[rows_idx], weight_bytes, memory->bytes());
      const StreamingChoice usual = best;
      products.Seconds(pool, kernels, usual);
      std::array<std::vector<double>, kStreamingWays.size()> ratios;
      double spent_s = 0;
      while (std::ssize(ratios.back()) < kLeastRounds || spent_s < budget_of_each_s) {
        const double usual_s = products.Seconds(pool, kernels, usual);
        spent_s += usual_s;
        for (size_t way = 0; way < kStreamingWays.size(); ++way) {
          const double seconds =
              products.Seconds(pool, kernels, StreamingChoice(kStreamingWays[way]));
          ratios[way].push_back(seconds / usual_s);
          spent_s += seconds;
        }
      }
      double least = kFaster;
      for (size_t way = 0; way < kStreamingWays.size(); ++way) {
        const double ratio = Median(ratios[way]);
        if (ratio >= least) continue;
        least = ratio;
        best.Set(format, rows_idx, kStreamingWays[way]);
      }
    }
  }
  return best;
}

}  // namespace convene::kernels
