// Norm, router and choice of few rows in one launch: each takes less time than a launch does. All
// blocks of a row norm it, the last of all blocks chooses.
#include <algorithm>

#include "kernels/cuda/normalize.cuh"
#include "kernels/cuda/require.h"
#include "kernels/cuda/router.cuh"
#include "kernels/cuda/routing.h"
#include "kernels/cuda/select.cuh"

namespace convene::kernels::cuda {
namespace {

constexpr int kMostThreads = 512;
static_assert(NormThreads(8) <= kMostThreads);
// So many rows of experts one block copies in the time of a launch.
constexpr int kMostGathered = 32;

// The row's norm to shared memory; one of its blocks writes it for the experts.
template <int kQuads>
__device__ __forceinline__ void NormalizeTo(const NormRows& norm, int64_t row, bool writes,
                                            NormMemory& memory, float* to) {
  const float* x = norm.x + row * norm.x_stride;
  NormalizeRow<kQuads, true>(
      norm, memory, [&](int first) { return LoadQuad<true>(x, first, norm.size); },
      [&](int first, float4 quad) {
        *reinterpret_cast<float4*>(to + first) = quad;
        if (writes) StoreNormed<true>(norm, row, first, quad);
      });
}

// Of a single row, whichever experts it is given to: its norm `x` to some of its slots.
__device__ __forceinline__ void CopyToSlots(const RouteRows& rows, const float* x, int num_blocks) {
  const auto padded = static_cast<int>(rows.gathered_stride);
  for (int slot = static_cast<int>(blockIdx.x); slot < rows.group.top_k; slot += num_blocks) {
    for (auto i = static_cast<int>(4 * threadIdx.x); i < padded;
         i += static_cast<int>(4 * blockDim.x)) {
      const float4 quad = LoadQuad<true>(x, i, rows.norm.size);
      *reinterpret_cast<uint2*>(rows.gathered + slot * rows.gathered_stride + i) =
          make_uint2(PackBf16(quad.x, quad.y), PackBf16(quad.z, quad.w));
    }
  }
}

// As GroupChunk, of a single row, whose experts `choice` has.
__device__ __forceinline__ void GroupOneRow(const GroupRows& rows, const Choice& choice) {
  for (auto e = static_cast<int>(threadIdx.x); e <= rows.num_experts;
       e += static_cast<int>(blockDim.x)) {
    int before = 0;
    bool is_chosen = false;
    for (int i = 0; i < rows.top_k; ++i) {
      before += choice.experts[i] < e ? 1 : 0;
      is_chosen = is_chosen || choice.experts[i] == e;
    }
    rows.first_slot[e] = before;
    if (is_chosen && rows.expert_counts != nullptr) rows.expert_counts[e] += 1;
  }
  for (auto i = static_cast<int>(threadIdx.x); i < rows.top_k; i += static_cast<int>(blockDim.x)) {
    rows.pair_slot[i] = i;
    rows.slot_row[i] = 0;
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(kMostThreads)
    RouteKernel(const __grid_constant__ RouteRows rows, int norm_quads, int outputs_of_block,
                int num_blocks, int choice_bytes) {
  LetNextBegin();
  if (static_cast<int>(blockIdx.x) >= num_blocks) {
    if (blockIdx.y == 0) {
      PrefetchToL2(static_cast<const std::byte*>(rows.prefetched), rows.prefetched_bytes,
                   static_cast<int>(blockIdx.x) - num_blocks,
                   static_cast<int>(gridDim.x) - num_blocks);
    }
    return;
  }
  __shared__ NormMemory norm_memory;
  __shared__ GroupMemory group_memory;
  __shared__ bool is_last;
  const RouterRows& router = rows.router;
  const int64_t row = blockIdx.y;
  const int first_output = static_cast<int>(blockIdx.x) * outputs_of_block;
  const int end_output = min(first_output + outputs_of_block, router.num_outputs);
  // The weights of the block's outputs, while the kernel before this one still runs.
  PrefetchOutputs(router, first_output, end_output);
  AwaitPrevious();

  auto* const x = reinterpret_cast<float*>(DynamicShared());
  NormRows norm = rows.norm;
  norm.out_float = nullptr;
  const bool writes = blockIdx.x == 0;
  switch (norm_quads) {
    case 1:
      NormalizeTo<1>(norm, row, writes, norm_memory, x);
      break;
    case 2:
      NormalizeTo<2>(norm, row, writes, norm_memory, x);
      break;
    case 4:
      NormalizeTo<4>(norm, row, writes, norm_memory, x);
      break;
    default:
      NormalizeTo<8>(norm, row, writes, norm_memory, x);
      break;
  }
  if (writes) PadNormed(norm, row);
  __syncthreads();

  const int output = first_output + WarpIndex();
  if (output < end_output) {
    const float* const of_row[1] = {x};
    float sums[1] = {};
    AddColumns<1, true>(router.weights + output * router.weight_stride, of_row, router.size, sums);
    const float sum = WarpSum(sums[0]);
    if (LaneIndex() == 0) {
      router.logits[row * router.logits_stride + output] = WithBias(router, sum, output);
    }
  }
  const bool is_one_row = rows.norm.num_rows == 1;
  if (is_one_row && rows.gathered != nullptr) CopyToSlots(rows, x, num_blocks);
  if (!IsLastOf(num_blocks * static_cast<int>(gridDim.y), rows.group.count, &is_last)) return;

  std::byte* const shared = DynamicShared();
  const auto num_warps = static_cast<int>(blockDim.x / 32);
  auto* const choice = reinterpret_cast<Choice*>(shared + WarpIndex() * choice_bytes);
  for (int each = WarpIndex(); each < rows.select.num_rows; each += num_warps) {
    SelectRow<kPerLane>(rows.select, each, choice);
    __syncwarp();
  }
  __syncthreads();
  if (is_one_row) {
    GroupOneRow(rows.group, *reinterpret_cast<const Choice*>(shared));
    return;
  }
  GroupChunk(rows.group, 0, 1, &group_memory,
             reinterpret_cast<uint16_t*>(shared + num_warps * choice_bytes));
  if (rows.gathered == nullptr) return;
  __syncthreads();
  const auto per_row = static_cast<int>(rows.gathered_stride / 8);
  const int num_slots = rows.group.num_rows * rows.group.top_k;
  for (auto i = static_cast<int>(threadIdx.x); i < num_slots * per_row;
       i += static_cast<int>(blockDim.x)) {
    const int slot = i / per_row;
    const int64_t at = int64_t{i % per_row} * 8;
    const Bf16* from = norm.out + rows.group.slot_row[slot] * norm.out_stride + at;
    *reinterpret_cast<uint4*>(rows.gathered + slot * rows.gathered_stride + at) =
        __ldcg(reinterpret_cast<const uint4*>(from));
  }
}

int NormQuads(int size) {
  int quads = 0;
  WithNormQuads(size, [&](auto of_thread) { quads = decltype(of_thread)::value; });
  return quads;
}

size_t SharedBytesOf(const RouteRows& rows, unsigned threads, int per_lane) {
  const int64_t num_pairs = int64_t{rows.group.num_rows} * rows.group.top_k;
  return std::max(sizeof(float) * Blocks(rows.router.size, 4) * 4,
                  threads / 32 * ChoiceBytes(rows.select.router, per_lane) +
                      CountsBytes(num_pairs, rows.group.num_experts));
}

// Whether the rows are few enough for one block to choose for, and quads of all of them aligned.
bool IsFused(const RouteRows& rows) {
  const RouterRows& router = rows.router;
  constexpr int kMostRows = 8;
  const unsigned of_norm = NormThreadsOf(router.size, NormQuads(router.size));
  const auto threads = static_cast<int>(of_norm);
  const bool is_aligned =
      AreAligned(rows.norm) &&
      AreMultiples(16, router.weights, 4 * router.weight_stride, 4 * router.size);
  if (!is_aligned || router.num_rows > kMostRows || rows.group.num_experts > threads ||
      router.num_rows * rows.group.top_k > threads) {
    return false;
  }
  // What a launch gets without asking, less what the kernel has itself.
  constexpr size_t kMostShared = 40 << 10;
  size_t shared = 0;
  WithExpertsPerLane(rows.group.num_experts, [&](auto per_lane) {
    shared = SharedBytesOf(rows, of_norm, decltype(per_lane)::value);
  });
  return shared <= kMostShared;
}

}  // namespace

bool GathersRows(const RouteRows& rows) {
  return rows.gathered != nullptr && IsFused(rows) &&
         rows.group.num_rows * rows.group.top_k <= kMostGathered &&
         rows.gathered_stride == rows.norm.out_stride &&
         AreMultiples(16, rows.norm.out, rows.gathered, 2 * rows.gathered_stride);
}

void Route(const RouteRows& rows, StreamHandle stream) {
  const RouterRows& router = rows.router;
  const int num_rows = rows.norm.num_rows;
  if (num_rows == 0) return;
  Require(router.x == rows.norm.out_float && router.size == rows.norm.size &&
              router.num_rows == num_rows && rows.select.logits == router.logits &&
              rows.select.num_rows == num_rows && rows.group.num_rows == num_rows &&
              rows.group.experts == rows.select.experts && router.num_outputs > 0,
          "other rows are routed than are normed");
  if (!IsFused(rows)) {
    Normalize(rows.norm, stream);
    RouterLogits(router, stream);
    SelectAndGroup(rows.select, rows.group, stream);
    return;
  }
  RequireChoosable(rows.select.router);
  RouteRows fused = rows;
  if (!GathersRows(rows)) fused.gathered = nullptr;
  const int quads = NormQuads(router.size);
  const unsigned threads = NormThreadsOf(router.size, quads);
  const auto num_warps = static_cast<int>(threads / 32);
  // Of few outputs each is to have much of a multiprocessor's way to memory.
  constexpr int kFewLogits = 512;
  const int outputs_of_block =
      num_rows * router.num_outputs <= kFewLogits ? std::min(2, num_warps) : num_warps;
  WithExpertsPerLane(rows.group.num_experts, [&](auto per_lane) {
    constexpr int kPerLane = decltype(per_lane)::value;
    const size_t choice = ChoiceBytes(rows.select.router, kPerLane);
    const unsigned blocks = Blocks(router.num_outputs, outputs_of_block);
    constexpr unsigned kPrefetchBlocks = 64;
    const unsigned beside = fused.prefetched_bytes > 0 ? kPrefetchBlocks : 0;
    Launch(RouteKernel<kPerLane>, dim3(blocks + beside, static_cast<unsigned>(num_rows)),
           dim3(threads), SharedBytesOf(rows, threads, kPerLane), stream, fused, quads,
           outputs_of_block, static_cast<int>(blocks), static_cast<int>(choice));
  });
}

}  // namespace convene::kernels::cuda
