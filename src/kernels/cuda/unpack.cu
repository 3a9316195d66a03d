// Weights from the CPU's packed form to rows, as they are loaded.
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/row_code.h"
#include "kernels/cuda/rows.h"

namespace convene::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// A tile is a panel's rows and so many pairs of columns.
constexpr int kTilePairs = 64;
// Words from pair to pair: those that 4 x 8 lanes read at once (quads of pairs, rows) then lie in
// different banks.
constexpr int kPairStride = kPanelRows + 2;

struct Panels {
  UnpackPanels matrix;
  int padded = 0;   // columns of a packed row
  int end_row = 0;  // rows of `to` that are written
};

// The row of a panel that becomes row `row` of kPanelRows of the target; none: less than 0.
__device__ __forceinline__ int SourceRow(int row, int width, bool is_gated) {
  if (!is_gated) return row < width ? row : -1;
  const int in_half = row / 16 * 8 + row % 8;
  const int half = width / 2;
  if (in_half >= half) return -1;
  return in_half + (row % 16 < 8 ? 0 : half);
}

__global__ void __launch_bounds__(kThreads) UnpackKernel(const __grid_constant__ Panels panels) {
  BeginAfterPrevious();
  __shared__ __align__(16) uint32_t tile[kTilePairs * kPairStride];
  const UnpackPanels& matrix = panels.matrix;
  const auto panel = static_cast<int>(blockIdx.y);
  const auto first_pair = static_cast<int>(blockIdx.x) * kTilePairs;
  const int left = matrix.rows - panel * kPanelRows;
  const int width = left >= kPanelRows ? kPanelRows : (left + kLanes - 1) / kLanes * kLanes;
  const auto* words = reinterpret_cast<const uint32_t*>(matrix.packed) +
                      int64_t{panel} * kPanelRows * (panels.padded / 2);

  const int quads = width / 4;  // of rows
  const int pairs = min(kTilePairs, panels.padded / 2 - first_pair);
  for (auto i = static_cast<int>(threadIdx.x); i < pairs * quads; i += kThreads) {
    const int pair = i / quads;
    const int row = i % quads * 4;
    const uint4 quad =
        *reinterpret_cast<const uint4*>(words + int64_t{first_pair + pair} * width + row);
    auto* to = reinterpret_cast<uint2*>(tile + pair * kPairStride + row);
    to[0] = make_uint2(quad.x, quad.y);
    to[1] = make_uint2(quad.z, quad.w);
  }
  __syncthreads();

  // A warp writes 64 bytes of each of 8 rows at a time.
  const int lane = LaneIndex();
  const int pairs_to_write = min(kTilePairs, static_cast<int>(matrix.row_stride / 2) - first_pair);
  for (int part = WarpIndex(); part < kPanelRows / 8 * (kTilePairs / 16); part += kThreads / 32) {
    const int pair = part % (kTilePairs / 16) * 16 + lane % 4 * 4;
    const int row = part / (kTilePairs / 16) * 8 + lane / 4;
    const int64_t to_row = int64_t{panel} * kPanelRows + row;
    if (pair >= pairs_to_write || to_row >= panels.end_row) continue;
    const int source = SourceRow(row, width, matrix.is_gated);
    uint4 quad = make_uint4(0, 0, 0, 0);
    if (source >= 0 && pair < pairs) {
      const uint32_t* from = tile + pair * kPairStride + source;
      quad = make_uint4(from[0], from[kPairStride], from[2 * kPairStride], from[3 * kPairStride]);
    }
    *reinterpret_cast<uint4*>(matrix.to + to_row * matrix.row_stride + 2 * (first_pair + pair)) =
        quad;
  }
}

}  // namespace

void Unpack(const UnpackPanels& panels, StreamHandle stream) {
  if (panels.rows == 0 || panels.row_stride == 0) return;
  const int padded = PaddedDepth(panels.cols);
  Require(panels.row_stride >= padded && panels.row_stride % 8 == 0 &&
              AreMultiples(16, panels.packed, panels.to),
          "rows that are too short, or not aligned");
  Require(!panels.is_gated || panels.rows % (2 * kLanes) == 0, "half a row of gate and up");
  const unsigned num_panels = Blocks(panels.rows, kPanelRows);
  const int all_rows = static_cast<int>(num_panels) * kPanelRows;
  static_assert(kPanelRows == kWeightRows);
  const Panels of_matrix = {
      .matrix = panels,
      .padded = padded,
      .end_row = panels.pads_rows || panels.is_gated ? all_rows : panels.rows};
  Launch(UnpackKernel, dim3(Blocks(panels.row_stride / 2, kTilePairs), num_panels), dim3(kThreads),
         0, stream, of_matrix);
}

}  // namespace convene::kernels::cuda
