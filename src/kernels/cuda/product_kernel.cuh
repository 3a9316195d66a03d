// The kernel of products on Hopper's tensor cores. A block computes tiles of weight rows (the M of
// wgmma) times tokens (its N): one warp loads steps of 64 columns of both into a ring of shared
// memory, one or two warpgroups multiply them. However wide a tile is, an output is one chain of
// the same steps along the depth, so that it does not depend on how many tokens come together.
#pragma once

#include "kernels/cuda/product_epilogue.cuh"
#include "kernels/cuda/product_hopper.cuh"
#include "kernels/cuda/product_tiles.cuh"

namespace convene::kernels::cuda {

// Rows of x in a box of each kind: a tile's are loaded as boxes of these, the largest first.
inline constexpr int kBoxKinds = 3;
__host__ __device__ constexpr int BoxRows(int kind) { return kind == 0 ? 64 : kind == 1 ? 16 : 8; }

struct ProductWork {
  CUtensorMap weights;
  CUtensorMap x[kBoxKinds];
  TileShape tiles;
  ProductOutput output;
  int k_steps = 0;
  int stages = 0;
  int stage_bytes = 0;
  int split = 1;  // blocks of a cluster among which the depth is divided
  bool awaits_first_row = false;
};

// Many rows: tiles of 128 weight rows and up to 256 tokens, of which a warpgroup computes 64 rows;
// with kMulticast a cluster of two blocks has 128 rows each and the same tokens, of which each
// loads half for both. Few rows: tiles of 64 and up to 64, two blocks side by side, so that one
// loads while the other writes; with kSplits the blocks of a cluster share a tile, each a part of
// the depth, and add their sums in order.
template <int kNumWarpgroups, int kMost, int kStep, bool kIsMulticast, bool kIsSplit>
struct TiledForm {
  static constexpr int kWarpgroups = kNumWarpgroups;
  static constexpr int kMostTokens = kMost;
  static constexpr int kTokenStep = kStep;
  static constexpr bool kMulticast = kIsMulticast;
  static constexpr bool kSplits = kIsSplit;

  static constexpr int kWeightRows = kWarpgroups * kWarpgroupRows;
  static constexpr int kWeightBytes = kWeightRows * kBoxRowBytes;
  static constexpr bool kMovesRegisters = kWarpgroups > 1;
  static constexpr int kThreads = kWarpgroups * 128 + (kMovesRegisters ? 128 : 32);
  static constexpr int kBlocksPerMultiprocessor = kMovesRegisters ? 1 : 2;
  static constexpr int kStagedTokens = kSplits ? kMostTokens : 32;
  static constexpr int kStagedBytes = kStagedTokens * kSumsStride * static_cast<int>(sizeof(float));
  static constexpr int kPair = kMulticast ? 2 : 1;
};
using ManyRows = TiledForm<2, 256, 16, false, false>;
using ManyRowsInPairs = TiledForm<2, 256, 16, true, false>;
using FewRows = TiledForm<1, 64, 8, false, false>;
using FewRowsSplit = TiledForm<1, 64, 8, false, true>;

inline constexpr int kMostStages = 24;

// Behind the ring, in shared memory.
template <typename Form>
struct BesideRing {
  float staged[Form::kWarpgroups][Form::kStagedTokens * kSumsStride];
  uint64_t full[kMostStages];
  uint64_t empty[kMostStages];
  TileCounts counts;
};

// A place in the ring, walked by each role on its own.
struct Ring {
  uint32_t memory = 0;
  uint32_t full = 0;
  uint32_t empty = 0;
  int stages = 0;
  int stage_bytes = 0;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t Memory() const { return memory + stage * stage_bytes; }
  __device__ __forceinline__ uint32_t Full() const { return full + stage * 8; }
  __device__ __forceinline__ uint32_t Empty() const { return empty + stage * 8; }
  __device__ __forceinline__ void Advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A warp has read a stage: told to all blocks that write to it.
template <typename Form>
__device__ __forceinline__ void ReleaseStage(uint32_t empty) {
  const int lane = threadIdx.x % 32;
  if constexpr (Form::kMulticast) {
    if (lane < Form::kPair) ArriveAt(empty, lane);
  } else {
    if (lane == 0) Arrive(empty);
  }
}

// The part of the depth that a block of a cluster has, in steps of kBoxColumns.
__device__ __forceinline__ int FirstStep(const ProductWork& work, int block) {
  return work.k_steps * block / work.split;
}

// sums += weights x^T of the next `steps` steps of the ring, by a warpgroup.
template <typename Form, int kTokens>
__device__ __forceinline__ void Accumulate(int steps, int warpgroup, Ring* ring, float* sums) {
  uint32_t before = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    WaitForBarrier(ring->Full(), ring->parity);
    const uint32_t memory = ring->Memory();
    const uint64_t weights = OperandAt(memory + warpgroup * kWarpgroupRows * kBoxRowBytes);
    const uint64_t x = OperandAt(memory + Form::kWeightBytes);
    BeginProducts();
#pragma unroll
    for (int part = 0; part < kBoxColumns / 16; ++part) {
      MultiplyAsync<kTokens>(sums, weights + part * kOperandStep, x + part * kOperandStep);
    }
    CommitProducts();
    // The step before is done, this one under way: so the tensor cores are never without work.
    WaitForProducts<1>();
    if (step > 0) ReleaseStage<Form>(before);
    before = ring->Empty();
    ring->Advance();
  }
  WaitForProducts<0>();
  ReleaseStage<Form>(before);
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// The sums of tokens [first, first + kStaged), of kTokens, where `first` is one of the multiples of
// kStaged from kFirst on.
template <int kStaged, int kTokens, int kFirst = 0>
__device__ __forceinline__ void StagePart(int first, const float* sums, float* staged) {
  constexpr int kLeft = kTokens - kFirst;
  if constexpr (kLeft > 0) {
    if (first != kFirst) {
      StagePart<kStaged, kTokens, kFirst + kStaged>(first, sums, staged);
      return;
    }
    StageSums<(kLeft < kStaged ? kLeft : kStaged)>(sums + kFirst / 2, staged);
    // Or else the compiler would make one of all parts, with an index that varies, and keep the
    // sums in memory.
    asm volatile("// part %0" ::"n"(kFirst) : "memory");
  }
}

// The sums of a warpgroup's tile to the output, kStagedTokens at a time.
template <typename Form, int kTokens>
__device__ __forceinline__ void WriteTile(const ProductWork& work, const Tile& tile, int warpgroup,
                                          const float* sums, float* staged) {
  constexpr int kStaged = Form::kStagedTokens;
  const int thread = threadIdx.x % 128;
  const int weight_row = tile.weight_row + warpgroup * kWarpgroupRows;
  const auto staged_sums = [&](int token, int row) {
    return *reinterpret_cast<const float4*>(staged + token * kSumsStride + row);
  };
  for (int first = 0; first < tile.num_rows; first += kStaged) {
    SynchronizeWarpgroup(warpgroup);  // what was staged before has been read
    StagePart<kStaged, kTokens>(first, sums, staged);
    SynchronizeWarpgroup(warpgroup);
    WriteOutput(work.output, staged_sums, tile.matrix, weight_row, tile.first_row + first,
                min(kStaged, tile.num_rows - first), thread, 128);
  }
}

// The same where each block of the cluster has the sums of a part of the depth: they are added in
// the order of the blocks, each of which writes a share of the tile.
template <int kTokens>
__device__ __forceinline__ void WriteSplitTile(const ProductWork& work, const Tile& tile, int block,
                                               const float* sums, float* staged) {
  StageSums<kTokens>(sums, staged);
  SynchronizeCluster();
  const uint32_t shared = SharedAddress(staged);
  const auto added_sums = [&](int token, int row) {
    const uint32_t at = shared + (token * kSumsStride + row) * sizeof(float);
    float4 sum = LoadFromBlock(at, 0);
    for (int other = 1; other < work.split; ++other) sum = Plus(sum, LoadFromBlock(at, other));
    return sum;
  };
  WriteOutput(work.output, added_sums, tile.matrix, tile.weight_row, tile.first_row, tile.num_rows,
              block * 128 + threadIdx.x, work.split * 128);
  SynchronizeReaders();  // others have read what was staged here
}

// A warpgroup's part of a tile of kTokens or, where those are more than it has, fewer.
template <typename Form, int kTokens = Form::kMostTokens>
__device__ __forceinline__ void ComputeTile(const ProductWork& work, const Tile& tile, int steps,
                                            int warpgroup, int block, Ring* ring, float* staged) {
  if constexpr (kTokens > Form::kTokenStep) {
    if (tile.tokens < kTokens) {
      ComputeTile<Form, kTokens - Form::kTokenStep>(work, tile, steps, warpgroup, block, ring,
                                                    staged);
      return;
    }
  }
  float sums[kTokens / 2] = {};
  Accumulate<Form, kTokens>(steps, warpgroup, ring, sums);
  if constexpr (Form::kSplits) {
    WriteSplitTile<kTokens>(work, tile, block, sums, staged);
  } else {
    WriteTile<Form, kTokens>(work, tile, warpgroup, sums, staged);
  }
}

// One thread loads all that its block's tile needs. `is_first`: nothing was loaded yet, and what an
// earlier kernel wrote may not be there yet: weights, which were there before, are not waited for.
template <typename Form>
__device__ __forceinline__ void LoadTile(const ProductWork& work, const Tile& tile, int block,
                                         bool is_first, Ring* ring) {
  const int first_step = Form::kSplits ? FirstStep(work, block) : 0;
  const int end_step = Form::kSplits ? FirstStep(work, block + 1) : work.k_steps;
  const int weight_row = tile.weight_row + (Form::kMulticast ? block * Form::kWeightRows : 0);
  const int x_begin = Form::kMulticast ? block * (tile.tokens / 2) : 0;
  const int x_end = Form::kMulticast ? x_begin + tile.tokens / 2 : tile.tokens;
  const uint32_t bytes = Form::kWeightBytes + tile.tokens * kBoxRowBytes;
  const auto load_weights = [&](const Ring& at, int step) {
    ArriveAndExpect(at.Full(), bytes);
    // Few rows: weights are read once, and need not push out what others will read.
    LoadBox(at.Memory(), &work.weights, step * kBoxColumns, weight_row, tile.matrix, at.Full(),
            Form::kMovesRegisters ? kKeepAsUsual : kEvictFirst);
  };
  int end_early = first_step;
  if (is_first) {
    // A pair's barriers count what both load.
    end_early = Form::kMulticast ? first_step : min(end_step, first_step + ring->stages);
    Ring early = *ring;
    for (int step = first_step; step < end_early; ++step) {
      load_weights(early, step);
      early.Advance();
    }
    AwaitPrevious();
  }
  for (int step = first_step; step < end_step; ++step) {
    const int column = step * kBoxColumns;
    const uint32_t full = ring->Full();
    if (step >= end_early) {
      WaitForBarrier(ring->Empty(), ring->parity ^ 1);
      load_weights(*ring, step);
    }
    const uint32_t x = ring->Memory() + Form::kWeightBytes;
    for (int row = x_begin; row < x_end;) {
      const int left = x_end - row;
      const int kind = left >= BoxRows(0) ? 0 : left >= BoxRows(1) ? 1 : 2;
      if constexpr (Form::kMulticast) {
        LoadBoxForAll(x + row * kBoxRowBytes, &work.x[kind], column, tile.first_row + row, full,
                      (1 << Form::kPair) - 1);
      } else {
        LoadBox(x + row * kBoxRowBytes, &work.x[kind], column, tile.first_row + row, full);
      }
      row += BoxRows(kind);
    }
    ring->Advance();
  }
}

template <typename Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocksPerMultiprocessor)
    MultiplyTiles(const __grid_constant__ ProductWork work) {
  std::byte* const shared = DynamicShared();
  auto* const beside = reinterpret_cast<BesideRing<Form>*>(shared + work.stages * work.stage_bytes);
  Ring ring = {.memory = SharedAddress(shared),
               .full = SharedAddress(beside->full),
               .empty = SharedAddress(beside->empty),
               .stages = work.stages,
               .stage_bytes = work.stage_bytes};
  if (ring.memory % kSwizzleBytes != 0) __trap();
  // Of the pair or the split; otherwise the only one.
  constexpr bool kIsCluster = Form::kMulticast || Form::kSplits;
  const int block = kIsCluster ? static_cast<int>(BlockOfCluster()) : 0;
  const int cluster_blocks = Form::kMulticast ? Form::kPair : Form::kSplits ? work.split : 1;
  const int first_tile = blockIdx.x / cluster_blocks;
  const int tile_step = gridDim.x / cluster_blocks;

  if (threadIdx.x == 0) {
    PrefetchMap(&work.weights);
    for (int i = 0; i < work.stages; ++i) {
      InitBarrier(ring.full + i * 8, 1);
      InitBarrier(ring.empty + i * 8, Form::kWarpgroups * 4 * Form::kPair);
    }
    PublishBarriers();
  }
  // Which rows a group has, an earlier kernel has written. Behind this the next product of the same
  // groups need not wait for it, since it begins when all blocks have come here.
  if (work.awaits_first_row) AwaitPrevious();
  // The next kernel has no room beside blocks of many rows.
  if constexpr (!Form::kMovesRegisters) LetNextBegin();
  CountTiles(work.tiles, &beside->counts);  // all threads meet in it
  if constexpr (kIsCluster) SynchronizeCluster();
  const TileCounts& counts = beside->counts;
  const int num_tiles = counts.num_tiles;
  int search = 0;

  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == Form::kWarpgroups) {
    if constexpr (Form::kMovesRegisters) GiveRegistersBack<40>();
    if (threadIdx.x / 32 == Form::kWarpgroups * 4) {
      for (int number = first_tile; number < num_tiles; number += tile_step) {
        const Tile tile = FindTile(work.tiles, counts, number, &search);
        if (threadIdx.x % 32 == 0) LoadTile<Form>(work, tile, block, number == first_tile, &ring);
        __syncwarp();
        if constexpr (Form::kSplits) {
          SynchronizeCluster();
          SynchronizeReaders();
        }
      }
    }
  } else {
    if constexpr (Form::kMovesRegisters) TakeRegisters<232>();
    const int steps =
        Form::kSplits ? FirstStep(work, block + 1) - FirstStep(work, block) : work.k_steps;
    float* const staged = beside->staged[warpgroup];
    AwaitPrevious();  // what is added to, or still read by others
    for (int number = first_tile; number < num_tiles; number += tile_step) {
      Tile tile = FindTile(work.tiles, counts, number, &search);
      if constexpr (Form::kMulticast) tile.weight_row += block * Form::kWeightRows;
      ComputeTile<Form>(work, tile, steps, warpgroup, block, &ring, staged);
    }
  }
  // A block's memory must be there until the other has told it of its last stage.
  if constexpr (Form::kMulticast) SynchronizeCluster();
}

}  // namespace convene::kernels::cuda
