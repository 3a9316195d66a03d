// How a warp chooses the experts of a row, and a block sorts pairs of rows and experts by expert.
// Nothing here depends on the order in which threads run. Device code.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/routing.h"
#include "kernels/cuda/row_code.h"

namespace convene::kernels::cuda {

inline constexpr int kMostExperts = 512;

// Shared memory of the warp that chooses a row's experts. Behind it `values` of all experts, where
// they compete in groups.
struct Choice {
  int32_t experts[kMaxTopK];
  float weights[kMaxTopK];
  uint32_t groups[kMostExperts / 32];  // those that compete, a bit each
};

__host__ __device__ constexpr bool HasGroups(const Router& router) {
  return router.num_expert_groups != router.top_expert_groups;
}
inline size_t ChoiceBytes(const Router& router, int per_lane) {
  return sizeof(Choice) + (HasGroups(router) ? sizeof(float) * 32 * per_lane : 0);
}

// Of the keys of a warp (number lane * kPerLane + i is keys[i]), the `wanted` largest, the lowest
// number first on ties: a bit for each of the lane's that is taken.
template <int kPerLane>
__device__ __forceinline__ uint32_t TakeLargest(uint32_t (&keys)[kPerLane], int wanted) {
  uint32_t taken = 0;
  for (int n = 0; n < wanted; ++n) {
    uint32_t best = keys[0];
    int at = 0;
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) {
      if (keys[i] > best) {
        best = keys[i];
        at = i;
      }
    }
    const uint32_t top = __reduce_max_sync(kAllLanes, best);
    if (top == 0) break;
    const uint32_t lanes = __ballot_sync(kAllLanes, best == top);
    if (LaneIndex() == __ffs(static_cast<int>(lanes)) - 1) {
      taken |= 1u << at;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (i == at) keys[i] = 0;
      }
    }
  }
  return taken;
}

// Keys of experts whose group is not among the best become 0.
template <int kPerLane>
__device__ __forceinline__ void KeepBestGroups(const Router& router, uint32_t (&keys)[kPerLane],
                                               const float (&value)[kPerLane], Choice* choice) {
  auto* values = reinterpret_cast<float*>(choice + 1);
  const int first = LaneIndex() * kPerLane;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) values[first + i] = value[i];
  if (LaneIndex() < kMostExperts / 32) choice->groups[LaneIndex()] = 0;
  __syncwarp();
  const int size = router.num_experts / router.num_expert_groups;
  uint32_t group_keys[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    group_keys[i] = 0;
    const int group = first + i;
    if (group >= router.num_expert_groups) continue;
    float best = -INFINITY;
    float second = -INFINITY;
    for (int j = 0; j < size; ++j) {
      const float x = values[group * size + j];
      if (x > best) {
        second = best;
        best = x;
      } else if (x > second) {
        second = x;
      }
    }
    const bool is_sum = router.group_score == GroupScore::kTopTwoSum && size > 1;
    group_keys[i] = OrderedBits(is_sum ? best + second : best);
  }
  const uint32_t taken = TakeLargest(group_keys, router.top_expert_groups);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int group = first + i;
    if ((taken >> i & 1) != 0) atomicOr(&choice->groups[group / 32], 1u << group % 32);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int group = (first + i) / size;
    if (first + i >= router.num_experts) continue;
    if ((choice->groups[group / 32] >> group % 32 & 1) == 0) keys[i] = 0;
  }
}

__device__ __forceinline__ float NormOf(const Router& router, const float* weights) {
  if (router.norm == RouterNorm::kNone) return 1;
  if (router.norm == RouterNorm::kPNorm) {
    if (isinf(router.norm_p)) {
      float largest = weights[0];
      for (int i = 1; i < router.top_k; ++i) largest = max(largest, weights[i]);
      return largest;
    }
    double sum = 0;
    for (int i = 0; i < router.top_k; ++i) {
      const double weight = weights[i];
      sum += router.norm_p == 1 ? weight : pow(weight, static_cast<double>(router.norm_p));
    }
    return static_cast<float>(router.norm_p == 1 ? sum : pow(sum, 1.0 / router.norm_p));
  }
  double sum = 0;
  for (int i = 0; i < router.top_k; ++i) sum += weights[i];
  return static_cast<float>(sum + 1e-20);
}

// By a warp: kernels::SelectExperts. Lane l has experts l * kPerLane and following.
template <int kPerLane>
__device__ __forceinline__ void SelectRow(const SelectRows& rows, int64_t row, Choice* choice) {
  const Router& router = rows.router;
  const bool is_sigmoid = router.score == RouterScore::kSigmoid;
  const float* logits = rows.logits + row * rows.logits_stride;
  const int first = LaneIndex() * kPerLane;
  float score[kPerLane];  // softmax: still the logit
  float value[kPerLane];
  uint32_t keys[kPerLane];
  bool has_nan = false;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    score[i] = -INFINITY;
    value[i] = -INFINITY;
    keys[i] = 0;
    if (first + i >= router.num_experts) continue;
    score[i] = __ldcg(logits + first + i);  // which another multiprocessor may just have written
    // In double as on the CPU, so that the same experts are chosen.
    if (is_sigmoid) score[i] = static_cast<float>(1 / (1 + exp(-static_cast<double>(score[i]))));
    value[i] = score[i];
    if (is_sigmoid && router.correction != nullptr) value[i] += router.correction[first + i];
    has_nan |= !(score[i] == score[i]);
    keys[i] = OrderedBits(value[i]);
  }
  if (HasGroups(router)) KeepBestGroups(router, keys, value, choice);
  const uint32_t taken = TakeLargest(keys, router.top_k);

  float scale = 1;
  float top = 0;
  if (!is_sigmoid) {
    top = score[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) top = max(top, score[i]);
#pragma unroll
    for (int by = 16; by > 0; by /= 2) top = max(top, __shfl_xor_sync(kAllLanes, top, by));
    float total = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (first + i < router.num_experts) total += expf(score[i] - top);
    }
    scale = 1 / WarpSum(total);
  }
  // The result shall tell of NaN, whichever expert's it is.
  if (__any_sync(kAllLanes, has_nan) != 0) scale = NAN;

  const int count = __popc(taken);
  int end = count;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const int before = __shfl_up_sync(kAllLanes, end, by);
    if (LaneIndex() >= by) end += before;
  }
  int at = end - count;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if ((taken >> i & 1) == 0) continue;
    choice->experts[at] = first + i;
    choice->weights[at] = (is_sigmoid ? score[i] : expf(score[i] - top)) * scale;
    ++at;
  }
  __syncwarp();
  const float norm = NormOf(router, choice->weights);
  for (int i = LaneIndex(); i < router.top_k; i += 32) {
    rows.experts[row * router.top_k + i] = choice->experts[i];
    rows.weights[row * router.top_k + i] = choice->weights[i] / norm * router.scale;
  }
}

// The sort takes so many pairs at a time, one by a thread.
inline constexpr int kChunk = 1024;

// A thread's pair; an expert that no pair has where there is none.
inline constexpr int kNoExpert = 2 * kMostExperts - 1;
__device__ __forceinline__ int ExpertOf(const GroupRows& rows, int64_t pair) {
  const bool is_pair = threadIdx.x < kChunk && pair < int64_t{rows.num_rows} * rows.top_k;
  return is_pair ? __ldcg(rows.experts + pair) : kNoExpert;  // other blocks may have chosen it
}

// The lanes whose expert is this lane's.
__device__ __forceinline__ uint32_t LanesOf(int expert) {
  uint32_t same = kAllLanes;
#pragma unroll
  for (int bit = 1; bit <= kNoExpert; bit *= 2) {
    const uint32_t set = __ballot_sync(kAllLanes, (expert & bit) != 0);
    same &= (expert & bit) != 0 ? set : ~set;
  }
  return same;
}

// counts (warps, num_experts): the pairs that a warp has of each expert. Returns how many of this
// thread's expert precede it in its warp. Ends with a barrier.
__device__ __forceinline__ int CountPairs(const GroupRows& rows, int expert, int num_warps,
                                          uint16_t* counts) {
  for (auto i = static_cast<int>(threadIdx.x); i < num_warps * rows.num_experts;
       i += static_cast<int>(blockDim.x)) {
    counts[i] = 0;
  }
  __syncthreads();
  const uint32_t same = LanesOf(expert);
  const int before = __popc(same & ((1u << LaneIndex()) - 1));
  if (expert != kNoExpert && before == 0) {
    counts[WarpIndex() * rows.num_experts + expert] = static_cast<uint16_t>(__popc(same));
  }
  __syncthreads();
  return before;
}

// Shared memory of a block that sorts.
struct GroupMemory {
  int of_warps[32];
  int first_slots[kMostExperts];
};

// By the chunk's block, with a thread for each pair and each expert: the slots of its pairs. Of
// more than one chunk `scratch` (chunks, num_experts) has the counts.
__device__ __forceinline__ void GroupChunk(const GroupRows& rows, int chunk, int num_chunks,
                                           GroupMemory* memory, uint16_t* counts) {
  int* const of_warps = memory->of_warps;
  int* const first_slots = memory->first_slots;
  const int64_t num_pairs = int64_t{rows.num_rows} * rows.top_k;
  const int64_t first_pair = int64_t{chunk} * kChunk;
  const int64_t pair = first_pair + threadIdx.x;
  const auto in_chunk = static_cast<int>(min(num_pairs - first_pair, int64_t{kChunk}));
  const int num_warps = (in_chunk + 31) / 32;
  const int expert = ExpertOf(rows, pair);
  const int before = CountPairs(rows, expert, num_warps, counts);

  // Thread e of expert e: pairs of the warps before each, of the chunks before, and of all.
  const auto e = static_cast<int>(threadIdx.x);
  int all = 0;
  int of_chunks_before = 0;
  if (e < rows.num_experts) {
    for (int warp = 0; warp < num_warps; ++warp) {
      uint16_t& count = counts[warp * rows.num_experts + e];
      const int here = count;
      count = static_cast<uint16_t>(all);
      all += here;
    }
    if (num_chunks > 1) {
      all = 0;
#pragma unroll 8
      for (int i = 0; i < num_chunks; ++i) {
        const int here = rows.scratch[int64_t{i} * rows.num_experts + e];
        if (i < chunk) of_chunks_before += here;
        all += here;
      }
    }
  }
  int end = all;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const int lower = __shfl_up_sync(kAllLanes, end, by);
    if (LaneIndex() >= by) end += lower;
  }
  if (LaneIndex() == 31) of_warps[WarpIndex()] = end;
  __syncthreads();
  if (e < rows.num_experts) {
    for (int warp = 0; warp < WarpIndex(); ++warp) end += of_warps[warp];
    first_slots[e] = end - all + of_chunks_before;
    if (chunk == 0) {
      rows.first_slot[e] = end - all;
      if (e + 1 == rows.num_experts) rows.first_slot[e + 1] = end;
      if (rows.expert_counts != nullptr) rows.expert_counts[e] += all;
    }
  }
  __syncthreads();
  if (expert == kNoExpert) return;
  const int slot = first_slots[expert] + counts[WarpIndex() * rows.num_experts + expert] + before;
  rows.pair_slot[pair] = slot;
  rows.slot_row[slot] = static_cast<int32_t>(pair / rows.top_k);
}

inline size_t CountsBytes(int64_t num_pairs, int num_experts) {
  return sizeof(uint16_t) * Blocks(std::min<int64_t>(num_pairs, kChunk), 32) *
         static_cast<size_t>(num_experts);
}

// Of a block with a thread for each pair and each expert.
inline unsigned GroupThreads(int64_t num_pairs, int num_experts) {
  const auto threads = std::min<int64_t>(std::max<int64_t>(num_pairs, num_experts), kChunk);
  return 32 * Blocks(threads, 32);
}

// Calls `launch` with the experts of a lane as a constant.
template <typename LaunchOf>
void WithExpertsPerLane(int num_experts, const LaunchOf& launch) {
  Require(num_experts <= kMostExperts, "more than 512 experts");
  if (num_experts <= 32) {
    launch(std::integral_constant<int, 1>());
  } else if (num_experts <= 64) {
    launch(std::integral_constant<int, 2>());
  } else if (num_experts <= 128) {
    launch(std::integral_constant<int, 4>());
  } else if (num_experts <= 256) {
    launch(std::integral_constant<int, 8>());
  } else {
    launch(std::integral_constant<int, 16>());
  }
}

inline void RequireChoosable(const Router& router) {
  const int size = router.num_experts / router.num_expert_groups;
  Require(router.top_k <= kMaxTopK && router.top_k <= router.top_expert_groups * size,
          "more experts of a row than there are to choose from");
}

}  // namespace convene::kernels::cuda
