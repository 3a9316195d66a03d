#include "evaluate/reference_kernel.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/median.h"
#include "kernels/grouped_gemm.h"

namespace convene::evaluate {
namespace {

constexpr int kSide = 1024;  // rows and columns of a matrix
constexpr uint64_t kStreamedBytes = uint64_t{96} << 20;
constexpr int kFewRows = 2;
constexpr int kCached = 2;  // matrices of the product in the caches
constexpr int kManyRows = 128;
constexpr int kCachedPasses = 3;
constexpr uint64_t kPieceBytes = uint64_t{64} << 10;  // some rows of an expert's slice
constexpr int kCopyPasses = 3;

}  // namespace

ReferenceKernel::ReferenceKernel(const kernels::KernelSet& kernels, hardware::ThreadPool& pool,
                                 const runtime::Formats& formats)
    : kernels_(&kernels), pool_(&pool), formats_(formats) {}

Result<ReferenceKernel> ReferenceKernel::Create(const kernels::KernelSet& kernels,
                                                hardware::ThreadPool& pool,
                                                const runtime::Formats& formats,
                                                memory::Ledger& ledger) {
  ReferenceKernel reference(kernels, pool, formats);
  kernels::PackedMatrix matrix{.format = formats.weights.matrices, .rows = kSide, .cols = kSide};
  if (matrix.format == kernels::WeightFormat::kInt4) matrix.group = formats.weights.group;
  const uint64_t matrix_bytes = (matrix.size_bytes() + 63) / 64 * 64;
  const uint64_t count = kStreamedBytes / matrix_bytes + 1;
  const auto row_bytes =
      static_cast<uint64_t>(kernels::ActivationRowBytes(formats.activations, kSide));
  const uint64_t most_rows = std::max<uint64_t>(count * kFewRows, kCached * kManyRows);
  Result<memory::Reservation> memory = ledger.Allocate(
      memory::Use::kStaging,
      count * matrix_bytes + most_rows * (row_bytes + uint64_t{4} * kSide) +
          static_cast<uint64_t>(kernels::kGemmScratchBytes) * static_cast<uint64_t>(pool.size()));
  if (!memory) return memory.error();
  // Small numbers in all formats, so that nothing becomes a denormal product.
  std::memset(memory->data(), 0x3c, memory->size_bytes());
  for (uint64_t i = 0; i < count; ++i) {
    matrix.data = memory->data() + i * matrix_bytes;
    reference.matrices_.push_back(matrix);
  }
  reference.rows_ = memory->data() + count * matrix_bytes;
  reference.out_ = reference.rows_ + most_rows * row_bytes;
  reference.scratch_ = reference.out_ + most_rows * 4 * kSide;
  reference.memory_ = *std::move(memory);
  return reference;
}

double ReferenceKernel::Seconds(int first, int count, int rows_each) {
  std::vector<kernels::GemmGroup> groups;
  for (int i = 0; i < count; ++i) {
    groups.push_back({&matrices_[first + i], i * rows_each, rows_each});
  }
  const auto start = std::chrono::steady_clock::now();
  kernels::RunGroupedGemm(*kernels_, *pool_,
                          {.groups = groups,
                           .activations = formats_.activations,
                           .rows = rows_,
                           .row_stride = kernels::ActivationRowBytes(formats_.activations, kSide),
                           .out = out_,
                           .out_stride = int64_t{4} * kSide,
                           .scratch = scratch_});
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

cost::ReferenceSpeed ReferenceKernel::Measure(comm::Group& group) {
  const auto count = static_cast<int>(matrices_.size());
  group.Barrier("reference kernels");
  const double streamed = Seconds(0, count, kFewRows);
  std::vector<double> cached;
  for (int i = 0; i < kCachedPasses; ++i) cached.push_back(Seconds(0, kCached, kManyRows));
  const double bytes = static_cast<double>(matrices_.front().size_bytes()) * count;
  return {.read_bytes_per_second = bytes / streamed,
          .dot_operations_per_second = 2.0 * kSide * kSide * kCached * kManyRows / Median(cached)};
}

void ReferenceKernel::Run() {
  Seconds(0, static_cast<int>(matrices_.size()), kFewRows);
  for (int i = 0; i < kCachedPasses; ++i) Seconds(0, kCached, kManyRows);
}

double ReferenceKernel::MeasureCopy(comm::Group& group) {
  // Every second piece of the first two thirds, one after the other into the last one. All of the
  // weights are the same bytes before and after.
  std::byte* data = memory_.data();
  const uint64_t count = matrices_.front().size_bytes() * matrices_.size() / 3 / kPieceBytes;
  std::byte* to = data + 2 * count * kPieceBytes;
  std::vector<double> rates;
  for (int pass = 0; pass < kCopyPasses; ++pass) {
    group.Barrier("copies");
    const auto start = std::chrono::steady_clock::now();
    pool_->ParallelFor(static_cast<int64_t>(count), [&](int64_t piece, int) {
      const auto at = static_cast<uint64_t>(piece) * kPieceBytes;
      std::memcpy(to + at, data + 2 * at, kPieceBytes);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    rates.push_back(static_cast<double>(count * kPieceBytes) / std::max(seconds.count(), 1e-9));
  }
  return Median(rates);
}

}  // namespace convene::evaluate
