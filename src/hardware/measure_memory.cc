#include "hardware/measure_memory.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "hardware/isa.h"
#include "hardware/memory_status.h"

namespace convene::hardware {
namespace {

// What one thread reads at a time, as two streams side by side. More streams, software prefetch and
// other widths than 32 bytes were slower (2 cores of an EPYC 9004, probe of 2026-11-21: 68 GB/s,
// against 62 with 64-byte loads and 65 with 16-byte ones).
constexpr size_t kBlockBytes = size_t{4} << 20;
constexpr size_t kLineBytes = 64;
constexpr size_t kPassBytes = size_t{256} << 20;

// The sum keeps the compiler from dropping the loads.
template <typename Vector>
[[gnu::always_inline]] inline uint64_t SumOfTwoStreams(const std::byte* begin, size_t size_bytes) {
  constexpr size_t kVectors = kLineBytes / sizeof(Vector);
  const size_t half_bytes = size_bytes / 2 / kLineBytes * kLineBytes;
  const auto* first = reinterpret_cast<const Vector*>(begin);
  const auto* second = reinterpret_cast<const Vector*>(begin + half_bytes);
  Vector sums[4] = {};
  for (size_t i = 0; i < half_bytes / sizeof(Vector); i += kVectors) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      sums[v % 2] += first[i + v];
      sums[2 + v % 2] += second[i + v];
    }
  }
  const Vector total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  uint64_t sum = 0;
  for (size_t i = 0; i < sizeof(Vector) / sizeof(uint64_t); ++i) sum += total[i];
  return sum;
}

using Vector16 [[gnu::vector_size(16), gnu::may_alias]] = uint64_t;

uint64_t SumBaseline(const std::byte* begin, size_t size_bytes) {
  return SumOfTwoStreams<Vector16>(begin, size_bytes);
}

#if defined(__x86_64__)
using Vector32 [[gnu::vector_size(32), gnu::may_alias]] = uint64_t;

[[gnu::target("avx2")]] uint64_t SumAvx2(const std::byte* begin, size_t size_bytes) {
  return SumOfTwoStreams<Vector32>(begin, size_bytes);
}
#else
constexpr auto SumAvx2 = SumBaseline;
#endif

}  // namespace

Rate MeasureReadBandwidth(ThreadPool& pool, std::span<const std::byte> memory, double budget_s) {
  CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kLineBytes == 0);
  const auto sum = VersionForIsa(SumBaseline, SumAvx2, SumAvx2);
  const size_t block_bytes =
      std::min(kBlockBytes, memory.size() / (2 * kLineBytes) * 2 * kLineBytes);
  if (block_bytes == 0) return {};
  const size_t num_blocks = memory.size() / block_bytes;
  const size_t blocks_per_pass = std::min(kPassBytes / block_bytes, num_blocks);
  std::atomic<uint64_t> total{0};
  size_t first_block = 0;
  const auto pass = [&] {
    pool.ParallelFor(static_cast<int64_t>(blocks_per_pass), [&](int64_t index, int) {
      const size_t block = (first_block + static_cast<size_t>(index)) % num_blocks;
      total.fetch_add(sum(memory.data() + block * block_bytes, block_bytes),
                      std::memory_order_relaxed);
    });
    first_block = (first_block + blocks_per_pass) % num_blocks;
    return static_cast<double>(blocks_per_pass * block_bytes);
  };
  return MeasureRate(budget_s, pass);
}

size_t BytesForBandwidth(int num_threads, uint64_t last_level_cache_bytes,
                         uint64_t available_bytes) {
  const uint64_t wanted_bytes = std::max({uint64_t{1} << 30, 8 * last_level_cache_bytes,
                                          8 * kBlockBytes * static_cast<uint64_t>(num_threads)});
  return std::min(wanted_bytes, available_bytes / 4) / kHugePageBytes * kHugePageBytes;
}

Result<HugeBuffer> AllocateForBandwidth(ThreadPool& pool, uint64_t last_level_cache_bytes,
                                        uint64_t most_bytes) {
  const Result<AvailableMemory> available = ReadAvailableMemory();
  if (!available) return available.error();
  const size_t size_bytes =
      std::min<uint64_t>(most_bytes / kHugePageBytes * kHugePageBytes,
                         BytesForBandwidth(pool.size(), last_level_cache_bytes, available->bytes));
  if (size_bytes == 0) {
    return ResourceExhausted("too little memory to measure how fast it is read: free some");
  }
  Result<HugeBuffer> buffer = HugeBuffer::Allocate(size_bytes, "measuring the memory bandwidth");
  if (!buffer) return buffer;
  // Unwritten pages would all be the same page of zeros.
  const size_t num_pages = (size_bytes + kHugePageBytes - 1) / kHugePageBytes;
  pool.ParallelFor(static_cast<int64_t>(num_pages), [&](int64_t page, int) {
    const size_t begin = static_cast<size_t>(page) * kHugePageBytes;
    std::memset(buffer->data() + begin, 0x11, std::min(kHugePageBytes, size_bytes - begin));
  });
  return buffer;
}

}  // namespace convene::hardware
