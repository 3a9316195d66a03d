#include "kernels/measure_order.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "hardware/huge_buffer.h"
#include "kernels/grouped_gemm.h"
#include "kernels/invented_experts.h"
#include "kernels/invented_rows.h"

namespace convene::kernels {
namespace {

constexpr size_t kBytesAtOnce = size_t{64} << 20;  // 16 experts
constexpr int kHidden = 2048;
constexpr int kOutputs = 2048;
constexpr std::array<int, 5> kRows = {1, 4, 16, 64, 256};
constexpr int kLeastRepeats = 3;
constexpr double kDenseIsFaster = 0.98;  // dense must take less than this part of the time

}  // namespace

Result<int> MeasureDenseFromRows(hardware::ThreadPool& pool, const KernelSet& kernels,
                                 double budget_s, std::span<const std::byte> weights,
                                 SecondsNow now) {
  std::vector<PackedMatrix> experts =
      InventExperts({.format = WeightFormat::kInt8, .rows = kOutputs, .cols = kHidden},
                    std::min(weights.size(), kBytesAtOnce));
  MemoryWalk walk(weights);
  const auto row_bytes = static_cast<size_t>(ActivationRowBytes(ActivationFormat::kInt8, kHidden));
  const size_t most_rows = experts.size() * kRows.back();
  Result<hardware::HugeBuffer> memory =
      hardware::HugeBuffer::Allocate(most_rows * (row_bytes + size_t{4} * kOutputs) +
                                         static_cast<size_t>(kGemmScratchBytes) * pool.size(),
                                     "measuring the order of experts");
  if (!memory) return memory.error();
  // Small numbers in all formats, so that nothing becomes a denormal product.
  std::memset(memory->data(), 0x3c, memory->size_bytes());
  std::byte* rows = memory->data();
  EndInventedRows(rows, most_rows, kHidden);
  std::byte* out = rows + most_rows * row_bytes;
  std::byte* scratch = out + most_rows * 4 * kOutputs;

  const auto seconds = [&](int rows_each, GemmOrder order) {
    std::vector<GemmGroup> groups;
    for (const PackedMatrix& expert : experts) {
      groups.push_back({&expert, static_cast<int>(std::ssize(groups)) * rows_each, rows_each});
    }
    PlaceNext(experts, walk);
    const double start = now();
    RunGroupedGemm(kernels, pool,
                   {.groups = groups,
                    .activations = ActivationFormat::kInt8,
                    .rows = rows,
                    .row_stride = static_cast<int64_t>(row_bytes),
                    .out = out,
                    .out_stride = int64_t{4} * kOutputs,
                    .scratch = scratch,
                    .order = order});
    return now() - start;
  };
  int from_rows = 0;
  for (const int rows_each : kRows) {
    std::vector<double> ratios;
    double spent_s = 0;
    seconds(rows_each, GemmOrder::kGrouped);
    while (std::ssize(ratios) < kLeastRepeats || spent_s < budget_s / kRows.size()) {
      const double grouped = seconds(rows_each, GemmOrder::kGrouped);
      const double dense = seconds(rows_each, GemmOrder::kDense);
      ratios.push_back(dense / grouped);
      spent_s += grouped + dense;
    }
    const bool dense_is_faster = IsFaster(ratios, kDenseIsFaster);
    if (!dense_is_faster) from_rows = 0;
    if (dense_is_faster && from_rows == 0) from_rows = rows_each;
  }
  return from_rows;
}

}  // namespace convene::kernels
