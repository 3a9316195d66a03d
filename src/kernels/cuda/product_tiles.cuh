// How a product is cut into tiles of weight rows times tokens, which the blocks of a persistent
// grid take by turns. Where groups begin is known to the device alone, so that each block counts
// the tiles itself.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_code.h"

namespace convene::kernels::cuda {

inline constexpr int kMostMatrices = 512;

// Of one launch.
struct TileShape {
  const int32_t* first_row = nullptr;  // of product.h
  int num_rows = 0;
  int count = 1;         // of matrices
  int weight_rows = 0;   // of a tile; with multicast those of all blocks of the cluster together
  int weight_tiles = 0;  // per matrix
  int most_tokens = 0;   // of a tile, a multiple of token_step
  int token_step = 8;    // tiles have a multiple of this
};

// In shared memory.
struct TileCounts {
  int32_t first_row[kMostMatrices + 1];
  int32_t first_tile[kMostMatrices];  // of each group, in the order in which tiles are taken
  int32_t num_tiles;
};

struct Tile {
  int matrix = 0;
  int weight_row = 0;
  int first_row = 0;  // of x
  int num_rows = 0;   // of its group
  int tokens = 0;     // num_rows, rounded up to token_step: what is computed
};

// So many tokens of a group are in each but its last tile: it is cut evenly, so that little of what
// is computed is in vain.
__device__ __forceinline__ int TokensPerTile(const TileShape& shape, int num_rows) {
  const int tiles = (num_rows + shape.most_tokens - 1) / shape.most_tokens;
  const int even = (num_rows + tiles - 1) / tiles;
  return (even + shape.token_step - 1) / shape.token_step * shape.token_step;
}

// By all threads of a block, and seen by all.
__device__ __forceinline__ void CountTiles(const TileShape& shape, TileCounts* counts) {
  for (int i = threadIdx.x; i <= shape.count; i += blockDim.x) {
    counts->first_row[i] =
        shape.first_row != nullptr ? shape.first_row[i] : (i == 0 ? 0 : shape.num_rows);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    int before = 0;
    for (int first = 0; first < shape.count; first += 32) {
      const int group = first + lane;
      int tiles = 0;
      if (group < shape.count) {
        const int rows = counts->first_row[group + 1] - counts->first_row[group];
        tiles = (rows + shape.most_tokens - 1) / shape.most_tokens * shape.weight_tiles;
      }
      int sum = tiles;
      for (int step = 1; step < 32; step *= 2) {
        const int left = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += left;
      }
      if (group < shape.count) counts->first_tile[group] = before + sum - tiles;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) counts->num_tiles = before;
  }
  __syncthreads();
}

// The tile of a number less than num_tiles, by all lanes of a warp. `search` is where to look, at
// first 0; it grows as numbers do.
__device__ __forceinline__ Tile FindTile(const TileShape& shape, const TileCounts& counts,
                                         int number, int* search) {
  // The last of the groups that begin with this tile or before: those without rows begin where
  // the next one does.
  const int lane = threadIdx.x % 32;
  int group = *search;
  for (int first = *search; first < shape.count; first += 32) {
    const int each = first + lane;
    const bool begins = each < shape.count && counts.first_tile[each] <= number;
    const int begun = __popc(__ballot_sync(0xffffffffu, begins));
    if (begun == 0) break;
    *search = first;
    group = first + begun - 1;
    if (begun < 32) break;
  }
  // Blocks that run side by side share weights (tokens vary first) and rows: both stay in the L2
  // cache if a group is walked in stripes of a few tiles of tokens.
  constexpr int kStripe = 8;
  const int rows = counts.first_row[group + 1] - counts.first_row[group];
  const int tokens = TokensPerTile(shape, rows);
  const int token_tiles = (rows + tokens - 1) / tokens;
  const int in_group = number - counts.first_tile[group];
  const int stripe = in_group / (kStripe * shape.weight_tiles);
  const int in_stripe = in_group - stripe * kStripe * shape.weight_tiles;
  const int width = min(kStripe, token_tiles - stripe * kStripe);
  const int weight_tile = in_stripe / width;
  const int first = (stripe * kStripe + in_stripe - weight_tile * width) * tokens;

  Tile tile;
  tile.matrix = group;
  tile.weight_row = weight_tile * shape.weight_rows;
  tile.first_row = counts.first_row[group] + first;
  tile.num_rows = min(tokens, rows - first);
  tile.tokens = (tile.num_rows + shape.token_step - 1) / shape.token_step * shape.token_step;
  return tile;
}

}  // namespace convene::kernels::cuda
