// The product without tensor cores: a thread sums one output, column after column. For tests, and
// for devices that are emulated.
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/product.h"

namespace convene::kernels::cuda {

namespace {

constexpr int kThreads = 128;

struct PlainProduct {
  WeightMatrices weights;
  const float* bias = nullptr;
  const Bf16* x = nullptr;
  int64_t x_stride = 0;
  const int32_t* first_row = nullptr;
  bool makes_activations = false;
  bool is_gated = false;
  bool is_clamped = false;
  bool adds = false;
  EpilogueParameters parameters = {};
  void* out = nullptr;
  int64_t out_stride = 0;
  int columns = 0;
};

__device__ int MatrixOf(const PlainProduct& product, int row) {
  if (product.first_row == nullptr) return 0;
  int matrix = 0;
  while (matrix + 1 < product.weights.count && product.first_row[matrix + 1] <= row) ++matrix;
  return matrix;
}

// Of a row of x and a packed row of a matrix, with its bias.
__device__ float SumOf(const PlainProduct& product, int row, int matrix, int weight_row) {
  const WeightMatrices& weights = product.weights;
  const Bf16* x = product.x + row * product.x_stride;
  const Bf16* w = weights.data + matrix * weights.matrix_stride + weight_row * weights.row_stride;
  float sum = 0;
  for (int k = 0; k < weights.cols; ++k) sum = fmaf(LowOfBf16(x[k]), LowOfBf16(w[k]), sum);
  if (product.bias != nullptr) sum += product.bias[int64_t{matrix} * weights.rows + weight_row];
  return sum;
}

__device__ float SigmoidOf(float x) { return 1.0f / (1.0f + __expf(-x)); }

__device__ float ActivationOf(const PlainProduct& product, int row, int matrix, int column) {
  if (!product.is_gated) {
    const float sum = SumOf(product, row, matrix, column);
    return sum < 0 ? 0 : sum;
  }
  const int packed = column / 8 * 16 + column % 8;
  float gate = SumOf(product, row, matrix, packed);
  float up = SumOf(product, row, matrix, packed + 8);
  if (!product.is_clamped) return gate * SigmoidOf(gate) * up;
  const float limit = product.parameters.limit;
  gate = limit < gate ? limit : gate;
  up = up < -limit ? -limit : limit < up ? limit : up;
  return gate * SigmoidOf(product.parameters.alpha * gate) * (up + 1.0f);
}

__global__ void MultiplyOutputs(PlainProduct product) {
  BeginAfterPrevious();
  const int row = blockIdx.x;
  const int column = blockIdx.y * blockDim.x + threadIdx.x;
  if (column >= product.columns) return;
  const int matrix = MatrixOf(product, row);
  const int64_t at = row * product.out_stride + column;
  if (product.makes_activations) {
    const float value = ActivationOf(product, row, matrix, column);
    static_cast<Bf16*>(product.out)[at] = static_cast<Bf16>(PackBf16(value, 0.0f) & 0xffff);
    return;
  }
  const float value = SumOf(product, row, matrix, column) * product.parameters.scale;
  float* out = static_cast<float*>(product.out) + at;
  *out = product.adds ? *out + value : value;
}

}  // namespace

void MultiplyPlainly(const Product& product, StreamHandle stream) {
  PlainProduct plain = {.weights = product.weights,
                        .bias = product.bias,
                        .x = product.x,
                        .x_stride = product.x_stride,
                        .first_row = product.first_row,
                        .makes_activations = MakesActivations(product.epilogue),
                        .is_gated = IsGated(product.epilogue),
                        .is_clamped = product.epilogue == Epilogue::kClampedSwiglu,
                        .adds = product.epilogue == Epilogue::kAdd,
                        .parameters = product.parameters,
                        .out = product.out,
                        .out_stride = product.out_stride,
                        .columns = product.columns};
  if (product.num_rows == 0 || product.columns == 0) return;
  const unsigned blocks = (product.columns + kThreads - 1) / kThreads;
  Launch(MultiplyOutputs, dim3(product.num_rows, blocks), dim3(kThreads), 0, stream, plain);
}

}  // namespace convene::kernels::cuda
