// The sum of what a row's experts gave, along the tree over expert indices (kernels/route.h), with
// the roundings of the CPU's kernels: equal inputs give equal sums.
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/normalize.cuh"
#include "kernels/cuda/require.h"
#include "kernels/cuda/routing.h"
#include "kernels/cuda/row_code.h"

namespace convene::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kBatch = 8;  // terms that are loaded at once
// Neighbours meet at level bit_width(a ^ b) of their indices; the last term closes all levels.
constexpr int kLevels = 10;
constexpr int kLastLevel = kLevels;
static_assert(kThreads >= kMaxTopK);

template <int kWidth>
struct Part {
  float values[kWidth];
};

template <int kWidth>
__device__ __forceinline__ Part<kWidth> Load(const float* from) {
  Part<kWidth> part;
  if constexpr (kWidth == 4) {
    const float4 quad = *reinterpret_cast<const float4*>(from);
    part.values[0] = quad.x;
    part.values[1] = quad.y;
    part.values[2] = quad.z;
    part.values[3] = quad.w;
  } else {
    part.values[0] = *from;
  }
  return part;
}

template <int kWidth>
__device__ __forceinline__ void Store(float* to, const Part<kWidth>& part) {
  if constexpr (kWidth == 4) {
    *reinterpret_cast<float4*>(to) =
        make_float4(part.values[0], part.values[1], part.values[2], part.values[3]);
  } else {
    *to = part.values[0];
  }
}

template <int kWidth>
__device__ __forceinline__ Part<kWidth> Times(float weight, const Part<kWidth>& part) {
  Part<kWidth> product;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) product.values[i] = __fmul_rn(weight, part.values[i]);
  return product;
}

template <int kWidth>
__device__ __forceinline__ Part<kWidth> Sum(const Part<kWidth>& a, const Part<kWidth>& b) {
  Part<kWidth> sum;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum.values[i] = __fadd_rn(a.values[i], b.values[i]);
  return sum;
}

// What all threads of a row need to know of its pairs.
struct Pairs {
  float weights[kMaxTopK];
  int slots[kMaxTopK];
  int levels[kMaxTopK];  // at which a pair meets the next
};

__device__ __forceinline__ void LoadPairs(const CombineRows& rows, int64_t row, Pairs* pairs) {
  const auto i = static_cast<int>(threadIdx.x);
  if (i >= rows.top_k) return;
  const int64_t at = row * rows.top_k + i;
  pairs->weights[i] = rows.weights[at];
  pairs->slots[i] = rows.pair_slot[at];
  const int expert = rows.experts[at];
  pairs->levels[i] = i + 1 < rows.top_k ? 32 - __clz(expert ^ rows.experts[at + 1]) : kLastLevel;
}

// Sums still open are kept by level: those of lower levels are closed first, as in TreeMerges,
// where at most one is open at each.
template <int kWidth>
__device__ __forceinline__ Part<kWidth> SumOfPairs(const CombineRows& rows, const Pairs& pairs,
                                                   int column) {
  Part<kWidth> open[kLevels] = {};
  unsigned is_open = 0;
  Part<kWidth> value = {};
  for (int first = 0; first < rows.top_k; first += kBatch) {
    Part<kWidth> batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= rows.top_k) break;
      batch[i] = Load<kWidth>(rows.slot_out + pairs.slots[first + i] * rows.slot_stride + column);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= rows.top_k) break;
      value = Times(pairs.weights[first + i], batch[i]);
      const int level = pairs.levels[first + i];
      const unsigned closes = is_open & ((1u << level) - 1);
      if (closes != 0) {
#pragma unroll
        for (int j = 1; j < kLevels; ++j) {
          if ((closes >> j & 1) != 0) value = Sum(open[j], value);
        }
      }
#pragma unroll
      for (int j = 1; j < kLevels; ++j) {
        if (j == level) open[j] = value;
      }
      is_open = (is_open & ~closes) | 1u << level;
    }
  }
  return value;
}

// The columns from `column` on of a row of the residual stream, with what its experts gave.
template <int kWidth>
__device__ __forceinline__ Part<kWidth> Combined(const CombineRows& rows, int64_t row,
                                                 const Pairs& pairs, int column) {
  const Part<kWidth> before = Load<kWidth>(rows.hidden + row * rows.hidden_stride + column);
  Part<kWidth> total = SumOfPairs<kWidth>(rows, pairs, column);
  if (rows.shared != nullptr) {
    float weight = 1;
    if (rows.gate_logits != nullptr) {
      weight = 1 / (1 + expf(-rows.gate_logits[row * rows.gate_stride]));
    }
    const auto shared = Load<kWidth>(rows.shared + row * rows.shared_stride + column);
    total = Sum(total, Times(weight, shared));
  }
  return Sum(before, Times(rows.scale, total));
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    CombineKernel(const __grid_constant__ CombineRows rows) {
  LetNextBegin();
  __shared__ Pairs pairs;
  const int64_t row = blockIdx.x;
  LoadPairs(rows, row, &pairs);
  AwaitPrevious();
  __syncthreads();
  const auto column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kWidth;
  if (column >= rows.size) return;
  Store(rows.hidden + row * rows.hidden_stride + column,
        Combined<kWidth>(rows, row, pairs, column));
}

template <int kQuads>
__global__ void __launch_bounds__(NormThreads(kQuads))
    CombineAndNormalizeKernel(const __grid_constant__ CombineRows rows,
                              const __grid_constant__ NormRows norm) {
  LetNextBegin();
  __shared__ Pairs pairs;
  __shared__ NormMemory memory;
  const int64_t row = blockIdx.x;
  LoadPairs(rows, row, &pairs);
  AwaitPrevious();
  __syncthreads();
  NormalizeRow<kQuads, true>(
      norm, memory,
      [&](int column) {
        if (column >= rows.size) return make_float4(0, 0, 0, 0);
        const Part<4> sum = Combined<4>(rows, row, pairs, column);
        Store(rows.hidden + row * rows.hidden_stride + column, sum);
        return make_float4(sum.values[0], sum.values[1], sum.values[2], sum.values[3]);
      },
      [&](int column, float4 quad) { StoreNormed<true>(norm, row, column, quad); });
  PadNormed(norm, row);
}

bool AreAligned(const CombineRows& rows) {
  return AreMultiples(16, rows.slot_out, rows.shared, rows.hidden, 4 * rows.size,
                      4 * rows.slot_stride, 4 * rows.shared_stride, 4 * rows.hidden_stride);
}

}  // namespace

void CombineExperts(const CombineRows& rows, StreamHandle stream) {
  if (rows.num_rows == 0 || rows.size == 0) return;
  Require(rows.top_k <= kMaxTopK, "more experts of a row than kMaxTopK");
  const bool aligned = AreAligned(rows);
  const int width = aligned ? 4 : 1;
  Launch(aligned ? CombineKernel<4> : CombineKernel<1>,
         dim3(static_cast<unsigned>(rows.num_rows), Blocks(rows.size, kThreads * width)),
         dim3(kThreads), 0, stream, rows);
}

void CombineAndNormalize(const CombineRows& rows, const NormRows& norm, StreamHandle stream) {
  if (rows.num_rows == 0 || rows.size == 0) return;
  Require(norm.x == rows.hidden && norm.x_stride == rows.hidden_stride &&
              norm.num_rows == rows.num_rows && norm.size == rows.size,
          "other rows are normed than were summed");
  // A thread for each of the pairs is the least.
  bool is_done = false;
  if (AreAligned(rows) && AreAligned(norm)) {
    WithNormQuads(rows.size, [&](auto quads) {
      constexpr int kQuads = decltype(quads)::value;
      const unsigned threads = NormThreadsOf(rows.size, kQuads);
      if (static_cast<int>(threads) < rows.top_k) return;
      Require(rows.top_k <= kMaxTopK, "more experts of a row than kMaxTopK");
      Launch(CombineAndNormalizeKernel<kQuads>, dim3(static_cast<unsigned>(rows.num_rows)),
             dim3(threads), 0, stream, rows, norm);
      is_done = true;
    });
  }
  if (is_done) return;
  CombineExperts(rows, stream);
  Normalize(norm, stream);
}

}  // namespace convene::kernels::cuda
