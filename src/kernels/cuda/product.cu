// Which form a product takes on Hopper, and its launch. The kernel is product_kernel.cuh's.
#include <cudaTypedefs.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/product_kernel.cuh"
#include "kernels/cuda/require.h"

namespace convene::kernels::cuda {

namespace {

constexpr int DivideUp(int a, int b) { return (a + b - 1) / b; }
constexpr int RoundUp(int a, int b) { return DivideUp(a, b) * b; }

// Of a multiprocessor of Hopper; each block takes a KiB of it besides its own.
constexpr int kSharedBytes = 228 << 10;
constexpr int kSharedBytesOfBlock = 1 << 10;
constexpr int kFewRows = 64;

struct ChosenForm {
  bool few_rows = false;
  int most_tokens = 0;
  int split = 1;
  bool multicast = false;
};

PFN_cuTensorMapEncodeTiled_v12000 FindEncoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &result);
  Require(error == cudaSuccess && result == cudaDriverEntryPointSuccess && function != nullptr,
          "the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

// Boxes of `box_rows` rows of a (matrices, rows, cols) tensor, or, where `matrix_stride` is 0, of a
// (rows, cols) matrix. What a box has beyond `cols` and `rows` is filled with zeros.
CUtensorMap MapOf(const Bf16* data, int cols, int rows, int matrices, int64_t row_stride,
                  int64_t matrix_stride, int box_rows) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = FindEncoder();
  const cuuint32_t rank = matrix_stride == 0 ? 2 : 3;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(matrices)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(row_stride) * sizeof(Bf16),
                                 static_cast<cuuint64_t>(matrix_stride) * sizeof(Bf16)};
  const cuuint32_t box[3] = {kBoxColumns, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<Bf16*>(data), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  Require(result == CUDA_SUCCESS, "a matrix of a product lies where no tensor map can describe it");
  return map;
}

template <typename Form>
void PrepareKernel() {
  const auto* kernel = reinterpret_cast<const void*>(&MultiplyTiles<Form>);
  // Where these fail, so do launches.
  static_cast<void>(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         kSharedBytes - kSharedBytesOfBlock));
  static_cast<void>(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared));
}

// Of the current device, whose kernels are prepared the first time.
int NumMultiprocessors() {
  static std::array<std::atomic<int>, 64> known = {};
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  const bool is_kept = device >= 0 && device < static_cast<int>(known.size());
  if (is_kept && known[device].load(std::memory_order_acquire) > 0) return known[device];
  int multiprocessors = 0;
  static_cast<void>(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  multiprocessors = std::max(multiprocessors, 1);
  PrepareKernel<ManyRows>();
  PrepareKernel<ManyRowsInPairs>();
  PrepareKernel<FewRows>();
  PrepareKernel<FewRowsSplit>();
  if (is_kept) known[device].store(multiprocessors, std::memory_order_release);
  return multiprocessors;
}

// Among how many blocks the depth of a matrix is divided where its rows alone are too few for all
// multiprocessors. It depends on nothing but the matrix's shape, not even on the device.
int SplitOf(int rows, int k_steps) {
  constexpr int kEnoughBlocks = 160;
  constexpr int kFewestSteps = 4;
  const int tiles = DivideUp(rows, FewRows::kWeightRows);
  int split = 1;
  while (split < 8 && tiles * split * 2 <= kEnoughBlocks && k_steps >= split * 2 * kFewestSteps) {
    split *= 2;
  }
  return split;
}

// The width of tiles with which many rows of one matrix take the least time: in clocks of a
// multiprocessor, a step is bound by its tensor cores or by what the L2 cache gives.
int BestTokens(int weight_tiles, int k_steps, int num_rows, int multiprocessors) {
  constexpr double kProductsPerClock = 2048;
  constexpr double kL2BytesPerClock = 5000;
  constexpr double kMostBytesPerClock = 56;
  int best = ManyRows::kMostTokens;
  double least = 0;
  for (const int most : {256, 224, 192, 160, 128, 96, 64, 48, 32}) {
    const int token_tiles = DivideUp(num_rows, most);
    const int tokens = RoundUp(DivideUp(num_rows, token_tiles), ManyRows::kTokenStep);
    const int tiles = weight_tiles * token_tiles;
    const int running = std::min(tiles, multiprocessors);
    const double products = double{ManyRows::kWeightRows} * tokens * kBoxColumns;
    const double bytes = double{ManyRows::kWeightBytes} + tokens * kBoxRowBytes;
    const double step = std::max(products / kProductsPerClock,
                                 bytes / std::min(kMostBytesPerClock, kL2BytesPerClock / running));
    const double clocks = DivideUp(tiles, multiprocessors) * (k_steps * step + 12 * tokens + 1000);
    if (least > 0 && clocks >= least) continue;
    least = clocks;
    best = most;
  }
  return best;
}

ChosenForm ChooseForm(const Product& product, int k_steps, int multiprocessors) {
  const WeightMatrices& weights = product.weights;
  const ProductForm& forced = product.form;
  const bool is_dense = product.first_row == nullptr;
  const int in_group = is_dense ? product.num_rows : DivideUp(product.num_rows, weights.count);
  ChosenForm form;
  // Groups differ in size, so that those of many rows on average include some of few.
  form.few_rows = forced.few_rows >= 0 ? forced.few_rows == 1
                                       : in_group <= (is_dense ? kFewRows : kFewRows / 2);
  const int weight_tiles = DivideUp(weights.rows, ManyRows::kWeightRows);
  if (form.few_rows) {
    // A stage has room for so many tokens: fewer, and more stages are under way.
    form.most_tokens = is_dense         ? RoundUp(std::min(in_group, kFewRows), FewRows::kTokenStep)
                       : in_group <= 4  ? 16
                       : in_group <= 12 ? 32
                                        : kFewRows;
    if (is_dense && !product.keep_one_chain) form.split = SplitOf(weights.rows, k_steps);
    if (is_dense && forced.split > 0) form.split = std::min(forced.split, k_steps);
    if (forced.most_tokens > 0) form.most_tokens = forced.most_tokens;
    Require(form.most_tokens <= FewRows::kMostTokens && form.most_tokens % FewRows::kTokenStep == 0,
            "tiles of few rows have a multiple of 8 tokens, at most 64");
    return form;
  }
  form.most_tokens = is_dense ? BestTokens(weight_tiles, k_steps, product.num_rows, multiprocessors)
                              : ManyRows::kMostTokens;
  if (forced.most_tokens > 0) form.most_tokens = forced.most_tokens;
  Require(form.most_tokens <= ManyRows::kMostTokens && form.most_tokens % ManyRows::kTokenStep == 0,
          "tiles of many rows have a multiple of 16 tokens, at most 256");
  form.multicast = forced.multicast >= 0
                       ? forced.multicast == 1
                       : weight_tiles % 2 == 0 && form.most_tokens >= 128 && in_group >= 128;
  return form;
}

template <typename Form>
void LaunchForm(const Product& product, const ChosenForm& form, int multiprocessors,
                StreamHandle stream) {
  const WeightMatrices& weights = product.weights;
  const bool is_dense = product.first_row == nullptr;
  ProductWork work = {};
  const int64_t matrix_stride =
      weights.count > 1 ? weights.matrix_stride : int64_t{weights.rows} * weights.row_stride;
  work.weights = MapOf(weights.data, weights.cols, weights.rows, weights.count, weights.row_stride,
                       matrix_stride, Form::kWeightRows);
  for (int kind = 0; kind < kBoxKinds; ++kind) {
    if (BoxRows(kind) > form.most_tokens) continue;  // no tile has room for it
    work.x[kind] =
        MapOf(product.x, weights.cols, product.num_rows, 1, product.x_stride, 0, BoxRows(kind));
  }
  work.k_steps = DivideUp(weights.cols, kBoxColumns);
  work.split = form.split;
  work.awaits_first_row = !is_dense && !product.first_row_is_known;
  work.tiles.first_row = product.first_row;
  work.tiles.num_rows = product.num_rows;
  work.tiles.count = is_dense ? 1 : weights.count;
  work.tiles.weight_rows = Form::kWeightRows * Form::kPair;
  work.tiles.weight_tiles = DivideUp(weights.rows, work.tiles.weight_rows);
  work.tiles.most_tokens = form.most_tokens;
  work.tiles.token_step = Form::kTokenStep;

  const Epilogue epilogue = product.epilogue;
  const bool makes_activations = MakesActivations(epilogue);
  const int64_t element_bytes = makes_activations ? sizeof(Bf16) : sizeof(float);
  work.output = {.bias = product.bias,
                 .bias_stride = weights.rows,
                 .makes_activations = makes_activations,
                 .is_gated = IsGated(epilogue),
                 .is_clamped = epilogue == Epilogue::kClampedSwiglu,
                 .adds = epilogue == Epilogue::kAdd,
                 .parameters = product.parameters,
                 .out = product.out,
                 .out_stride = product.out_stride,
                 .columns = product.columns,
                 .is_aligned = reinterpret_cast<uintptr_t>(product.out) % 16 == 0 &&
                               product.out_stride * element_bytes % 16 == 0};

  // No groups of so many rows make more tiles than this.
  const int64_t token_tiles =
      is_dense ? DivideUp(product.num_rows, form.most_tokens)
               : std::min(product.num_rows, weights.count) + product.num_rows / form.most_tokens;
  const int64_t most_tiles = token_tiles * work.tiles.weight_tiles;
  const int cluster = Form::kMulticast ? Form::kPair : Form::kSplits ? form.split : 1;
  // Memory of a whole multiprocessor for a block only where there are enough of them. Clusters must
  // fit beside each other, whatever number of multiprocessors shares a part of the chip.
  const bool is_alone = most_tiles <= multiprocessors && cluster == 1;
  const int side_by_side = is_alone ? 1 : Form::kBlocksPerMultiprocessor;
  // A split tile's blocks are all there is, so each is its own.
  const int64_t clusters =
      Form::kSplits ? most_tiles
                    : std::min<int64_t>(most_tiles, multiprocessors * side_by_side / cluster);

  work.stage_bytes = Form::kWeightBytes + form.most_tokens * kBoxRowBytes;
  const int block_bytes = kSharedBytes / side_by_side - kSharedBytesOfBlock;
  const int for_ring = block_bytes - static_cast<int>(sizeof(BesideRing<Form>));
  work.stages = std::min(for_ring / work.stage_bytes, kMostStages);

  cudaLaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (!Form::kMovesRegisters) {
    cudaLaunchAttribute& early = attributes[num_attributes++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& together = attributes[num_attributes++];
    together.id = cudaLaunchAttributeClusterDimension;
    together.val.clusterDim = {.x = static_cast<unsigned>(cluster), .y = 1, .z = 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(clusters * cluster));
  config.blockDim = dim3(Form::kThreads);
  config.dynamicSmemBytes = work.stages * work.stage_bytes + sizeof(BesideRing<Form>);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  static_cast<void>(cudaLaunchKernelEx(&config, MultiplyTiles<Form>, work));
}

}  // namespace

void Multiply(const Product& product, StreamHandle stream) {
  const WeightMatrices& weights = product.weights;
  if (product.num_rows == 0 || product.columns == 0) return;
  Require(weights.rows > 0 && weights.rows % kWeightRows == 0 && weights.cols > 0,
          "rows of weights are padded to a multiple of kWeightRows");
  Require(weights.count <= kMostMatrices && (weights.count == 1 || product.first_row != nullptr),
          "at most 512 matrices, and groups for more than one");
  Require(product.columns <= (IsGated(product.epilogue) ? weights.rows / 2 : weights.rows),
          "a matrix has no more columns of output");
  const int multiprocessors = NumMultiprocessors();
  const int k_steps = DivideUp(weights.cols, kBoxColumns);
  const ChosenForm form = ChooseForm(product, k_steps, multiprocessors);
  if (!form.few_rows) {
    if (form.multicast) {
      LaunchForm<ManyRowsInPairs>(product, form, multiprocessors, stream);
    } else {
      LaunchForm<ManyRows>(product, form, multiprocessors, stream);
    }
  } else if (form.split > 1) {
    LaunchForm<FewRowsSplit>(product, form, multiprocessors, stream);
  } else {
    LaunchForm<FewRows>(product, form, multiprocessors, stream);
  }
}

}  // namespace convene::kernels::cuda
