// Queries and keys on their way from the projection to attention: norm, clip, RoPE; and keys and
// values to the cache.
#include <algorithm>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/row_code.h"
#include "kernels/cuda/rows.h"

namespace convene::kernels::cuda {
namespace {

constexpr int kMostWarps = 16;

// A head of a row: where it comes from and what is done to it.
struct Head {
  const float* x = nullptr;
  int size = 0;
  const float* norm = nullptr;  // or null
  float scale = 1;              // of the norm
  float clip = 0;
  Bf16* out = nullptr;
  float* out_float = nullptr;  // in its place, or null
};

// The order is the same whether pairs are aligned or not.
template <bool kAligned>
__device__ __forceinline__ float SumOfSquares(const float* x, int size, int thread, int threads) {
  float sum = 0;
#pragma unroll 4
  for (int i = 2 * thread; i < size; i += 2 * threads) {
    const float2 pair = LoadPair<kAligned>(x, i, size);
    sum = fmaf(pair.y, pair.y, fmaf(pair.x, pair.x, sum));
  }
  return sum;
}

__device__ __forceinline__ float NormScale(float squares, int size, float epsilon) {
  return 1 / sqrtf(squares / static_cast<float>(size) + epsilon);
}

__device__ __forceinline__ float Clip(float x, float clip) {
  // NaN stays.
  return clip <= 0 ? x : x < -clip ? -clip : x > clip ? clip : x;
}

template <bool kAligned>
__device__ __forceinline__ float2 Load(const Head& head, int i, int end) {
  float2 pair = LoadPair<kAligned>(head.x, i, end);
  if (head.norm != nullptr) {
    const float2 norm = LoadPair<kAligned>(head.norm, i, end);
    pair = make_float2(pair.x * head.scale * norm.x, pair.y * head.scale * norm.y);
  }
  return make_float2(Clip(pair.x, head.clip), Clip(pair.y, head.clip));
}

template <bool kAligned>
__device__ __forceinline__ void Store(const Head& head, int i, int end, float2 pair) {
  if (head.out_float != nullptr) {
    head.out_float[i] = pair.x;
    if (i + 1 < end) head.out_float[i + 1] = pair.y;
    return;
  }
  if constexpr (kAligned) {
    *reinterpret_cast<uint32_t*>(head.out + i) = PackBf16(pair.x, pair.y);
  } else {
    head.out[i] = Bf16Of(pair.x);
    if (i + 1 < end) head.out[i + 1] = Bf16Of(pair.y);
  }
}

// By a warp. `cosine` and `sine` (half) turn elements i and half + i.
template <bool kAligned>
__device__ __forceinline__ void MoveHead(const Head& head, int half, const float* cosine,
                                         const float* sine) {
  const int lane = LaneIndex();
  for (int i = 2 * lane; i < half; i += 64) {
    const float2 first = Load<kAligned>(head, i, half);
    Head upper = head;
    upper.x += half;
    upper.out += half;
    if (head.out_float != nullptr) upper.out_float += half;
    if (head.norm != nullptr) upper.norm += half;
    const float2 second = Load<kAligned>(upper, i, half);
    const float2 c = LoadPair<kAligned>(cosine, i, half);
    const float2 s = LoadPair<kAligned>(sine, i, half);
    Store<kAligned>(head, i, half,
                    make_float2(first.x * c.x - second.x * s.x, first.y * c.y - second.y * s.y));
    Store<kAligned>(upper, i, half,
                    make_float2(second.x * c.x + first.x * s.x, second.y * c.y + first.y * s.y));
  }
  for (int i = 2 * half + 2 * lane; i < head.size; i += 64) {
    Store<kAligned>(head, i, head.size, Load<kAligned>(head, i, head.size));
  }
}

// A warp for a head; where a norm is over a whole projection, each block sums up all of the row.
template <bool kAligned>
__global__ void __launch_bounds__(32 * kMostWarps, 3)
    PrepareQkvKernel(const __grid_constant__ QkvRows rows) {
  LetNextBegin();
  __shared__ float of_warps[2][32];
  const QkvShape& shape = rows.shape;
  const int64_t row = blockIdx.x;
  Bf16* block_keys = nullptr;
  int slot = 0;
  if (shape.num_kv_heads > 0 && rows.kv_rows == nullptr) {
    slot = rows.positions[row] % kKvBlockTokens;
    block_keys = reinterpret_cast<Bf16*>(rows.kv_blocks[rows.row_blocks[row]]);
  }
  const int half = shape.rotary_dim / 2;
  const float* cosine =
      half > 0 ? rows.angles + int64_t{rows.angle_rows[row]} * shape.rotary_dim : nullptr;
  AwaitPrevious();
  const float* queries = rows.qkv + row * rows.qkv_stride;
  const int query_dim = shape.num_heads * shape.head_dim;
  const int key_dim = shape.num_kv_heads * shape.head_dim;
  const float* keys = queries + query_dim;
  const float* values = keys + key_dim;

  const bool whole = shape.norm == QkNorm::kWholeProjection;
  float query_scale = 1;
  float key_scale = 1;
  if (whole) {
    const auto threads = static_cast<int>(blockDim.x);
    const auto thread = static_cast<int>(threadIdx.x);
    const float of_queries = SumOfSquares<kAligned>(queries, query_dim, thread, threads);
    const float of_keys = SumOfSquares<kAligned>(keys, key_dim, thread, threads);
    query_scale = NormScale(BlockSum(of_queries, of_warps[0]), query_dim, shape.epsilon);
    key_scale = NormScale(BlockSum(of_keys, of_warps[1]), key_dim, shape.epsilon);
  }

  Bf16* block_values = block_keys + int64_t{kKvBlockTokens} * key_dim;
  float* const kv_rows =
      rows.kv_rows == nullptr ? nullptr : rows.kv_rows + row * rows.kv_row_stride;

  const int value_heads = shape.value_dim > 0 ? shape.num_kv_heads : 0;
  const int num_heads = shape.num_heads + shape.num_kv_heads + value_heads;
  const auto warps = static_cast<int>(blockDim.x / 32);
  for (int index = static_cast<int>(blockIdx.y) * warps + WarpIndex(); index < num_heads;
       index += warps * static_cast<int>(gridDim.y)) {
    Head head = {.size = shape.head_dim, .clip = shape.clip};
    int turned = half;
    if (index >= shape.num_heads + shape.num_kv_heads) {
      const int64_t kv_head = index - shape.num_heads - shape.num_kv_heads;
      head.size = shape.value_dim;
      head.x = values + kv_head * shape.value_dim;
      head.out = block_values + (kv_head * kKvBlockTokens + slot) * shape.value_dim;
      if (kv_rows != nullptr) head.out_float = kv_rows + key_dim + kv_head * shape.value_dim;
      turned = 0;
    } else {
      const bool is_key = index >= shape.num_heads;
      const int64_t in_kind = is_key ? index - shape.num_heads : index;
      head.x = (is_key ? keys : queries) + in_kind * shape.head_dim;
      head.out = is_key ? block_keys + (in_kind * kKvBlockTokens + slot) * shape.head_dim
                        : rows.queries + row * rows.query_stride + in_kind * shape.head_dim;
      if (is_key && kv_rows != nullptr) head.out_float = kv_rows + in_kind * shape.head_dim;
      const float* norm = is_key ? shape.key_norm : shape.query_norm;
      if (whole) {
        head.norm = norm + in_kind * shape.head_dim;
        head.scale = is_key ? key_scale : query_scale;
      } else if (shape.norm == QkNorm::kPerHead) {
        head.norm = norm;
        const float squares = WarpSum(SumOfSquares<kAligned>(head.x, head.size, LaneIndex(), 32));
        head.scale = NormScale(squares, head.size, shape.epsilon);
      }
    }
    MoveHead<kAligned>(head, turned, cosine, cosine + half);
  }
}

// Whether pairs of elements lie at multiples of their size.
bool IsAligned(const QkvRows& rows) {
  const QkvShape& shape = rows.shape;
  return AreMultiples(4, shape.rotary_dim) &&
         AreMultiples(2, shape.head_dim, shape.value_dim, rows.qkv_stride, rows.query_stride) &&
         AreMultiples(8, rows.qkv, rows.angles, shape.query_norm, shape.key_norm) &&
         AreMultiples(4, rows.queries);
}

}  // namespace

void PrepareQkv(const QkvRows& rows, StreamHandle stream) {
  const QkvShape& shape = rows.shape;
  const int num_heads = shape.num_heads + (shape.value_dim > 0 ? 2 : 1) * shape.num_kv_heads;
  if (rows.num_rows == 0 || num_heads == 0) return;
  Require(shape.rotary_dim <= shape.head_dim && shape.rotary_dim % 2 == 0,
          "more than a head, or an odd number of elements, turns");
  const auto warps = static_cast<unsigned>(std::min(num_heads, kMostWarps));
  // Of many rows it would be read too often.
  constexpr int kFewRows = 16;
  const bool sums_once = shape.norm == QkNorm::kWholeProjection && rows.num_rows > kFewRows;
  const unsigned blocks = sums_once ? 1 : Blocks(num_heads, warps);
  Launch(IsAligned(rows) ? PrepareQkvKernel<true> : PrepareQkvKernel<false>,
         dim3(static_cast<unsigned>(rows.num_rows), blocks), dim3(32 * warps), 0, stream, rows);
}

void StoreKv(const QkvRows& rows, StreamHandle stream) {
  QkvRows kv = rows;
  kv.shape.num_heads = 0;
  kv.shape.norm = QkNorm::kNone;
  kv.shape.clip = 0;
  kv.shape.rotary_dim = 0;
  PrepareQkv(kv, stream);
}

}  // namespace convene::kernels::cuda
