#include "kernels/cuda/emulated.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cuda/device_code.h"

namespace convene::kernels::cuda {
namespace {

constexpr unsigned kAll = 0xffffffff;

// Sums of blocks: through shuffles, static shared memory and a barrier.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) SumBlocks(const float* x, float* sums) {
  __shared__ float of_warps[kThreads / 32];
  float sum = x[blockIdx.x * kThreads + threadIdx.x];
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(kAll, sum, by);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) total += of_warps[warp];
  sums[blockIdx.x] = total;
}

TEST(Emulated, BlocksSumThroughShufflesAndABarrier) {
  std::vector<float> x(256 * 5);
  std::iota(x.begin(), x.end(), 1.0f);
  std::vector<float> sums(5);
  Launch(SumBlocks<256>, dim3(5), dim3(256), 0, nullptr, x.data(), sums.data());
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(sums[i], std::accumulate(x.begin() + 256 * i, x.begin() + 256 * (i + 1), 0.0f));
  }
  Launch(SumBlocks<64>, dim3(1), dim3(64), 0, nullptr, x.data(), sums.data());
  EXPECT_EQ(sums[0], 64 * 65 / 2);
}

__global__ void ShuffleAll(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const auto put = [&](int i, int value) { out[32 * i + lane] = value; };
  put(0, __shfl_sync(kAll, lane, 5));
  put(1, __shfl_sync(kAll, lane, 9, 8));
  put(2, __shfl_up_sync(kAll, lane, 3));
  put(3, __shfl_up_sync(kAll, lane, 3, 8));
  put(4, __shfl_down_sync(kAll, lane, 3));
  put(5, __shfl_down_sync(kAll, lane, 3, 8));
  put(6, __shfl_xor_sync(kAll, lane, 9));
  put(7, static_cast<int>(__ballot_sync(kAll, lane % 3 == 0)));
  put(8, __any_sync(kAll, lane == 31));
  put(9, __all_sync(kAll, lane != 31));
  put(10, __reduce_add_sync(kAll, lane));
  put(11, __reduce_max_sync(kAll, lane ^ 5));
  if (lane < 16) {
    put(12, __shfl_xor_sync(0xffff, lane, 1));
  } else {
    put(12, __shfl_xor_sync(0xffff0000, lane, 2));
  }
  put(13, static_cast<int>(std::lround(__shfl_xor_sync(kAll, 1e300 * lane, 1) / 1e300)));
}

TEST(Emulated, LanesShuffle) {
  std::vector<int> out(32 * 14);
  Launch(ShuffleAll, dim3(1), dim3(32), 0, nullptr, out.data());
  for (int lane = 0; lane < 32; ++lane) {
    const auto got = [&](int i) { return out[32 * i + lane]; };
    EXPECT_EQ(got(0), 5);
    EXPECT_EQ(got(1), lane / 8 * 8 + 1);
    EXPECT_EQ(got(2), lane < 3 ? lane : lane - 3);
    EXPECT_EQ(got(3), lane % 8 < 3 ? lane : lane - 3);
    EXPECT_EQ(got(4), lane < 29 ? lane + 3 : lane);
    EXPECT_EQ(got(5), lane % 8 < 5 ? lane + 3 : lane);
    EXPECT_EQ(got(6), lane ^ 9);
    EXPECT_EQ(got(7), 0x49249249);
    EXPECT_EQ(got(8), 1);
    EXPECT_EQ(got(9), 0);
    EXPECT_EQ(got(10), 31 * 16);
    EXPECT_EQ(got(11), 31);
    EXPECT_EQ(got(12), lane < 16 ? lane ^ 1 : lane ^ 2);
    EXPECT_EQ(got(13), lane ^ 1);
  }
}

__global__ void IndexOfThreads(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned size = blockDim.x * blockDim.y * blockDim.z;
  const int rest = __syncthreads_count(thread % 2 == 0);
  atomicAdd(&out[block * size + thread], rest);
}

TEST(Emulated, GridsAndBlocksHaveThreeDimensions) {
  std::vector<int> out(24 * 30);
  Launch(IndexOfThreads, dim3(2, 3, 4), dim3(5, 2, 3), 0, nullptr, out.data());
  EXPECT_EQ(out, std::vector<int>(24 * 30, 15));
}

// out (16, 8) = a (16, 16) b, with b as (8, 16), column by column, or, transposed, (16, 8).
__global__ void MultiplyTile(const bf16* a, const bf16* b, bool is_transposed, float* out) {
  bf16* shared_a = reinterpret_cast<bf16*>(DynamicShared());
  bf16* shared_b = shared_a + 16 * 16;
  const int lane = static_cast<int>(threadIdx.x);
  CopyAsync16(shared_a + 8 * lane, a + 8 * lane, true);
  CopyAsyncCommit();
  // The second half of b's space stays zero, as the second tile of ldmatrix is.
  CopyAsync16(shared_b + 8 * lane, b + 8 * lane, lane < 16);
  CopyAsyncCommit();
  CopyAsyncWait<0>();
  __syncthreads();
  uint32_t of_a[4];
  LdMatrix4(of_a, shared_a + lane % 16 * 16 + lane / 16 * 8);
  uint32_t of_b[4];
  if (is_transposed) {
    LdMatrix4Trans(of_b, shared_b + lane * 8);
  } else {
    LdMatrix4(of_b, shared_b + lane % 8 * 16 + lane / 8 % 2 * 8 + lane / 16 * 128);
  }
  EXPECT_EQ(of_b[2], 0u);
  EXPECT_EQ(of_b[3], 0u);
  const int g = lane / 4;
  const int t = lane % 4;
  float d[4] = {1, 1, 1, 1};
  MmaBf16(d, of_a, of_b);
  for (int i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

TEST(Emulated, TilesMultiplyAsPlainProducts) {
  alignas(16) bf16 a[16 * 16];
  alignas(16) bf16 b[16 * 8];
  alignas(16) bf16 b_columns[8 * 16];
  for (int i = 0; i < 16 * 16; ++i) a[i] = static_cast<float>(i * 37 % 101 - 50);
  for (int k = 0; k < 16; ++k) {
    for (int n = 0; n < 8; ++n) {
      b[k * 8 + n] = b_columns[n * 16 + k] = static_cast<float>((k * 8 + n) * 53 % 97 - 48);
    }
  }
  for (const bool is_transposed : {false, true}) {
    float out[16 * 8];
    Launch(MultiplyTile, dim3(1), dim3(32), 1024, nullptr, a, is_transposed ? b : b_columns,
           is_transposed, out);
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 8; ++n) {
        float sum = 1;
        for (int k = 0; k < 16; ++k) sum += float{a[m * 16 + k]} * float{b[k * 8 + n]};
        EXPECT_EQ(out[m * 8 + n], sum) << m << ", " << n << (is_transposed ? " transposed" : "");
      }
    }
  }
}

__global__ void CopyInGroups(const uint32_t* from, uint32_t* seen) {
  __shared__ __align__(16) uint32_t shared[4 * 4];
  for (int i = 0; i < 4; ++i) {
    CopyAsync16(shared + 4 * i, from + 4 * i, i != 2);
    CopyAsyncCommit();
  }
  CopyAsyncWait<2>();
  for (int i = 0; i < 16; ++i) seen[i] = shared[i];
  CopyAsyncWait<0>();
  for (int i = 0; i < 16; ++i) seen[16 + i] = shared[i];
}

TEST(Emulated, CopiesComeWithTheirWait) {
  alignas(16) uint32_t from[16];
  std::iota(from, from + 16, 1u);
  uint32_t seen[32];
  Launch(CopyInGroups, dim3(1), dim3(1), 0, nullptr, from, seen);
  for (uint32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(seen[i], i < 8 ? i + 1 : kAll);
    EXPECT_EQ(seen[16 + i], i / 4 == 2 ? 0 : i + 1);
  }
}

__global__ void ReadUnwritten(bool* is_nan) {
  __shared__ float of_block[4];
  const float* dynamic = reinterpret_cast<float*>(DynamicShared());
  is_nan[blockIdx.x] = std::isnan(of_block[threadIdx.x]) && std::isnan(dynamic[threadIdx.x]);
  of_block[threadIdx.x] = 1;
  reinterpret_cast<float*>(DynamicShared())[threadIdx.x] = 1;
}

TEST(Emulated, SharedMemoryBeginsAsNan) {
  bool is_nan[3] = {};
  Launch(ReadUnwritten, dim3(3), dim3(1), 64, nullptr, is_nan);
  EXPECT_TRUE(is_nan[0] && is_nan[1] && is_nan[2]);
}

TEST(Emulated, Bf16RoundsToNearestEven) {
  EXPECT_EQ(bf16(1.0f).__x, 0x3f80);
  EXPECT_EQ(bf16(1.00390625f).__x, 0x3f80);
  EXPECT_EQ(bf16(1.01171875f).__x, 0x3f82);
  EXPECT_EQ(bf16(1.00390637f).__x, 0x3f81);
  EXPECT_EQ(bf16(-INFINITY).__x, 0xff80);
  EXPECT_EQ(bf16(NAN).__x, 0x7fff);
  EXPECT_EQ(PackBf16(1, -2), 0xc0003f80);
  EXPECT_EQ(HighOfBf16(PackBf16(1, -2)), -2);
}

__global__ void PartAtTheBarrier() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else if (threadIdx.x < 64) {
    __shfl_xor_sync(kAll, 1, 1);
  }
}
__global__ void EndBeforeTheBarrier(int* count) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  atomicAdd(count, 1);
}
__global__ void MeetAtDifferentShuffles() {
  if (threadIdx.x < 16) {
    __shfl_xor_sync(kAll, 1, 1);
  } else {
    __shfl_down_sync(kAll, 1, 1);
  }
}
__global__ void MultiplyWithHalfAWarp() {
  if (threadIdx.x >= 16) return;
  float d[4] = {};
  const uint32_t a[4] = {};
  MmaBf16(d, a, a);
}
__global__ void LoadMisaligned() {
  uint32_t r[4];
  LdMatrix4(r, DynamicShared() + 8);
}
__global__ void LoadLocal() {
  alignas(16) uint32_t local[4] = {};
  uint32_t r[4];
  LdMatrix4(r, local);
}
__global__ void WriteBeyond() { DynamicShared()[100] = std::byte{0}; }

TEST(EmulatedDeathTest, WhatWouldHangOrBeUndefinedEndsTheProgram) {
  EXPECT_DEATH(Launch(PartAtTheBarrier, dim3(1), dim3(70), 0, nullptr),
               "24 threads .the first is 40, the last 63. wait at __shfl_xor_sync with mask "
               "0xffffffff; 40 threads .the first is 0, the last 39. wait at __syncthreads");
  EXPECT_DEATH(Launch(MeetAtDifferentShuffles, dim3(1), dim3(32), 0, nullptr), "meet at");
  EXPECT_DEATH(Launch(MultiplyWithHalfAWarp, dim3(1), dim3(32), 0, nullptr), "have ended");
  EXPECT_DEATH(Launch(LoadMisaligned, dim3(1), dim3(32), 64, nullptr), "misaligned");
  EXPECT_DEATH(Launch(LoadLocal, dim3(1), dim3(32), 64, nullptr), "not shared");
  EXPECT_DEATH(Launch(WriteBeyond, dim3(1), dim3(32), 100, nullptr), "behind its 100 bytes");
  EXPECT_DEATH(Launch(WriteBeyond, dim3(0), dim3(32), 100, nullptr), "empty grid");
}

TEST(Emulated, ThreadsThatHaveEndedHoldNobodyUp) {
  int count = 0;
  Launch(EndBeforeTheBarrier, dim3(2), dim3(64), 0, nullptr, &count);
  EXPECT_EQ(count, 80);
}

}  // namespace
}  // namespace convene::kernels::cuda
