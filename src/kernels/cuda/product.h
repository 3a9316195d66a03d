// Products with weights in bf16, dense or one per expert: out = epilogue(x W^T + bias), sums in
// float32. An output is one chain along the depth, whatever the number of rows (decision 0001).
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/kernel_set.h"

namespace convene::kernels::cuda {

// Rows are padded with zeros to a multiple of this, columns in memory to kDepthPadding.
inline constexpr int kWeightRows = 64;

// A gated block's matrix takes gate and up by turns, 8 rows of each, so that a thread of a tensor
// core's tile has both: packed row r is row 8 * (r / 16) + r % 8 of gate where r % 16 < 8, of up
// otherwise. Padded to a multiple of kWeightRows.
constexpr int GatedRows(int intermediate) {
  return ((intermediate + 7) / 8 * 16 + kWeightRows - 1) / kWeightRows * kWeightRows;
}

// `count` matrices (rows, cols) of the same shape, one behind the other.
struct WeightMatrices {
  const Bf16* data = nullptr;  // 128-byte aligned
  int rows = 0;                // a multiple of kWeightRows
  int cols = 0;
  int64_t row_stride = 0;     // elements: PaddedDepth(cols)
  int64_t matrix_stride = 0;  // elements: rows * row_stride or more
  int count = 1;
};

// Forces how a product is computed, to compare: what is left as it is, Multiply chooses.
struct ProductForm {
  int few_rows = -1;    // 1: tiles of 64 weight rows and at most 64 tokens; 0: of 128 and 256
  int most_tokens = 0;  // of a tile
  int split = 0;        // few rows of one matrix: so many chains per output, 1, 2, 4 or 8
  int multicast = -1;   // many rows: pairs of blocks that share what they load of x, or not
};

// Weights and bias may be read before the kernels that were enqueued earlier are done.
struct Product {
  WeightMatrices weights;
  const float* bias = nullptr;  // (count, weights.rows) or null
  const Bf16* x = nullptr;      // (num_rows, cols), 16-byte aligned
  int64_t x_stride = 0;         // elements, a multiple of 64
  int num_rows = 0;             // of x, over all matrices
  // Rows [first_row[i], first_row[i + 1]) are multiplied with matrix i (count + 1); null: all of
  // them with the one matrix. At most 512 matrices.
  const int32_t* first_row = nullptr;
  // That first_row was the same already for the grouped product that was enqueued last: so this one
  // may load weights while that one runs.
  bool first_row_is_known = false;
  Epilogue epilogue = Epilogue::kStore;
  EpilogueParameters parameters = {};
  // kStore, kAdd: (num_rows, columns) float; otherwise Bf16. Columns beyond these are not written;
  // of a gated matrix an output column is 8 * (r / 16) + r % 8 of packed row r. Rows that begin at
  // multiples of 16 bytes are written faster.
  void* out = nullptr;
  int64_t out_stride = 0;  // elements
  int columns = 0;
  // Where few rows (up to 64) meet one matrix that has few rows itself, its depth is divided among
  // several multiprocessors, into as many chains as the matrix's shape asks for: so few and many
  // rows differ in the order of their sums. This keeps one chain there too.
  bool keep_one_chain = false;
  ProductForm form = {};
};

// Whatever the device is, it has compute capability 9.0 (Hopper). Errors of the launch are
// cudaGetLastError's.
void Multiply(const Product& product, StreamHandle stream);

// The same, slowly and without tensor cores: what Multiply is compared with.
void MultiplyPlainly(const Product& product, StreamHandle stream);

}  // namespace convene::kernels::cuda
