// Which experts rows go to, and the pairs of rows and experts sorted by expert: the kernels of
// select.cuh's functions.
#include <algorithm>

#include "kernels/cuda/require.h"
#include "kernels/cuda/routing.h"
#include "kernels/cuda/select.cuh"

namespace convene::kernels::cuda {
namespace {

constexpr int kSelectWarps = 4;
constexpr int kRowsOfBlock = 4;

template <int kPerLane>
__global__ void __launch_bounds__(32 * kSelectWarps)
    SelectKernel(const __grid_constant__ SelectRows rows, int choice_bytes) {
  BeginAfterPrevious();
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / 32) + WarpIndex();
  if (row >= rows.num_rows) return;
  std::byte* choice = DynamicShared() + WarpIndex() * choice_bytes;
  SelectRow<kPerLane>(rows, row, reinterpret_cast<Choice*>(choice));
}

__global__ void __launch_bounds__(kChunk) GroupKernel(const __grid_constant__ GroupRows rows) {
  BeginAfterPrevious();
  __shared__ GroupMemory memory;
  GroupChunk(rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), &memory,
             reinterpret_cast<uint16_t*>(DynamicShared()));
}

// Of more than one chunk: the counts of each, to scratch.
__global__ void __launch_bounds__(kChunk) CountKernel(const __grid_constant__ GroupRows rows) {
  BeginAfterPrevious();
  __shared__ int counts[kMostExperts];
  for (auto i = threadIdx.x; i < kMostExperts; i += kChunk) counts[i] = 0;
  __syncthreads();
  const int expert = ExpertOf(rows, int64_t{blockIdx.x} * kChunk + threadIdx.x);
  if (expert != kNoExpert) atomicAdd(&counts[expert], 1);
  __syncthreads();
  const auto e = static_cast<int>(threadIdx.x);
  if (e < rows.num_experts) rows.scratch[int64_t{blockIdx.x} * rows.num_experts + e] = counts[e];
}

// A warp for each row; the block that is done last sorts.
template <int kPerLane>
__global__ void __launch_bounds__(kChunk)
    SelectAndGroupKernel(const __grid_constant__ SelectRows select,
                         const __grid_constant__ GroupRows group, int choice_bytes) {
  BeginAfterPrevious();
  __shared__ GroupMemory memory;
  __shared__ bool is_last;
  std::byte* shared = DynamicShared();
  const int row = static_cast<int>(blockIdx.x) * kRowsOfBlock + WarpIndex();
  if (WarpIndex() < kRowsOfBlock && row < select.num_rows) {
    SelectRow<kPerLane>(select, row,
                        reinterpret_cast<Choice*>(shared + WarpIndex() * choice_bytes));
  }
  if (!IsLastOf(static_cast<int>(gridDim.x), group.count, &is_last)) return;
  GroupChunk(group, 0, 1, &memory,
             reinterpret_cast<uint16_t*>(shared + kRowsOfBlock * choice_bytes));
}

}  // namespace

void SelectExpertsOfRows(const SelectRows& rows, StreamHandle stream) {
  if (rows.num_rows == 0) return;
  RequireChoosable(rows.router);
  WithExpertsPerLane(rows.router.num_experts, [&](auto per_lane) {
    constexpr int kPerLane = decltype(per_lane)::value;
    const size_t choice = ChoiceBytes(rows.router, kPerLane);
    const int warps = std::min(rows.num_rows, kSelectWarps);
    Launch(SelectKernel<kPerLane>, dim3(Blocks(rows.num_rows, warps)),
           dim3(static_cast<unsigned>(32 * warps)), warps * choice, stream, rows,
           static_cast<int>(choice));
  });
}

int64_t GroupScratch(int num_rows, int num_experts, int top_k) {
  return int64_t{Blocks(int64_t{num_rows} * top_k, kChunk)} * num_experts;
}

void GroupByExpert(const GroupRows& rows, StreamHandle stream) {
  const int64_t num_pairs = int64_t{rows.num_rows} * rows.top_k;
  if (num_pairs == 0) return;
  Require(rows.num_experts <= kMostExperts, "more than 512 experts");
  const unsigned chunks = Blocks(num_pairs, kChunk);
  if (chunks > 1) Launch(CountKernel, dim3(chunks), dim3(kChunk), 0, stream, rows);
  Launch(GroupKernel, dim3(chunks), dim3(GroupThreads(num_pairs, rows.num_experts)),
         CountsBytes(num_pairs, rows.num_experts), stream, rows);
}

void SelectAndGroup(const SelectRows& select, const GroupRows& group, StreamHandle stream) {
  if (select.num_rows == 0) return;
  Require(select.experts == group.experts && select.num_rows == group.num_rows &&
              select.router.top_k == group.top_k && select.router.num_experts == group.num_experts,
          "other experts are chosen than are grouped");
  RequireChoosable(select.router);
  const int64_t num_pairs = int64_t{group.num_rows} * group.top_k;
  constexpr int kMostRows = 128;
  bool is_done = false;
  if (select.num_rows <= kMostRows && num_pairs <= kChunk) {
    WithExpertsPerLane(group.num_experts, [&](auto per_lane) {
      constexpr int kPerLane = decltype(per_lane)::value;
      constexpr size_t kMostShared = 40 << 10;
      const unsigned threads = std::max(GroupThreads(num_pairs, group.num_experts),
                                        static_cast<unsigned>(32 * kRowsOfBlock));
      const size_t choice = ChoiceBytes(select.router, kPerLane);
      const size_t shared = kRowsOfBlock * choice + CountsBytes(num_pairs, group.num_experts);
      if (shared > kMostShared) return;
      Launch(SelectAndGroupKernel<kPerLane>, dim3(Blocks(select.num_rows, kRowsOfBlock)),
             dim3(threads), shared, stream, select, group, static_cast<int>(choice));
      is_done = true;
    });
  }
  if (is_done) return;
  SelectExpertsOfRows(select, stream);
  GroupByExpert(group, stream);
}

}  // namespace convene::kernels::cuda
