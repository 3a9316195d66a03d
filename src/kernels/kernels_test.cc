// Every kernel set that this machine can run against the reference, and the property that a row's
// result does not depend on which rows come with it.
#include "kernels/reference/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "hardware/thread_pool.h"
#include "kernels/choose_kernels.h"
#include "kernels/grouped_gemm.h"
#include "kernels/pack.h"

namespace convene::kernels {
namespace {

constexpr double kFloatEpsilon = 1.2e-7;
constexpr double kBf16Epsilon = 1.0 / 256;

double EpsilonOf(ActivationFormat format) {
  return format == ActivationFormat::kF32 ? kFloatEpsilon : kBf16Epsilon;
}

// All formats that go together.
struct Formats {
  WeightFormat weights;
  ActivationFormat activations;
  int group = 0;

  // Of what SiLU gives.
  ActivationFormat wide() const {
    return activations == ActivationFormat::kInt8 ? ActivationFormat::kF32 : activations;
  }
  std::string Describe() const {
    return std::string(Name(weights)) + " by activations of " +
           std::to_string(ElementBytes(activations)) + " bytes, group " + std::to_string(group);
  }
};

constexpr Formats kFormats[] = {
    {WeightFormat::kF32, ActivationFormat::kF32},
    {WeightFormat::kBf16, ActivationFormat::kBf16},
    {WeightFormat::kInt8, ActivationFormat::kInt8},
    {WeightFormat::kInt8, ActivationFormat::kBf16},
    {WeightFormat::kInt4, ActivationFormat::kInt8, 32},
    {WeightFormat::kInt4, ActivationFormat::kInt8, 64},
    {WeightFormat::kInt4, ActivationFormat::kInt8, 128},
    {WeightFormat::kInt4, ActivationFormat::kBf16, 128},
};

std::vector<float> RandomFloats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct Packed {
  PackedMatrix matrix;
  std::vector<std::byte> storage;
};

std::byte* Align(std::vector<std::byte>& storage) {
  const auto address = reinterpret_cast<uintptr_t>(storage.data());
  return storage.data() + (64 - address % 64) % 64;
}

// Packs a whole matrix, source_of(packed row) giving the source of each row.
template <typename F>
void PackRows(const PackedMatrix& matrix, std::byte* data, F&& source_of) {
  for (int group = 0; group * kLanes < matrix.rows; ++group) {
    RowSource sources[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) sources[lane] = source_of(group * kLanes + lane);
    PackGroup(sources, matrix, group, data);
  }
}

Packed Pack(const Formats& formats, const std::vector<float>& weights, int rows, int cols) {
  Packed packed;
  packed.matrix = {.format = formats.weights, .group = formats.group, .rows = rows, .cols = cols};
  packed.storage.resize(packed.matrix.size_bytes() + 64);
  std::byte* data = Align(packed.storage);
  packed.matrix.data = data;
  const StoredMatrix source{.dtype = tensor::DType::kF32,
                            .data = reinterpret_cast<const std::byte*>(weights.data()),
                            .row_stride = cols,
                            .rows = rows,
                            .cols = cols};
  PackRows(packed.matrix, data, [&](int row) -> RowSource {
    return row < rows ? RowSource{&source, row} : RowSource{};
  });
  return packed;
}

// Gate and up as one matrix.
Packed PackGateUp(const Formats& formats, const std::vector<float>& gate,
                  const std::vector<float>& up, int intermediate, int cols) {
  Packed packed;
  packed.matrix = {.format = formats.weights,
                   .group = formats.group,
                   .rows = GateUpRows(intermediate),
                   .cols = cols};
  packed.storage.resize(packed.matrix.size_bytes() + 64);
  std::byte* data = Align(packed.storage);
  packed.matrix.data = data;
  const auto stored = [&](const std::vector<float>& values) {
    return StoredMatrix{.dtype = tensor::DType::kF32,
                        .data = reinterpret_cast<const std::byte*>(values.data()),
                        .row_stride = cols,
                        .rows = intermediate,
                        .cols = cols};
  };
  const StoredMatrix gate_source = stored(gate);
  const StoredMatrix up_source = stored(up);
  PackRows(packed.matrix, data, [&](int packed_row) -> RowSource {
    const GateUpRow at = GateUpRowAt(intermediate, packed_row);
    if (at.row >= intermediate) return {};
    return {at.is_up ? &up_source : &gate_source, at.row};
  });
  return packed;
}

struct Rows {
  std::vector<std::byte> storage;
  int64_t stride = 0;
};

Rows MakeRows(ActivationFormat format, const std::vector<float>& values, int rows, int cols) {
  Rows result;
  result.stride = ActivationRowBytes(format, cols);
  result.storage.resize(static_cast<size_t>(result.stride * rows));
  for (int row = 0; row < rows; ++row) {
    std::byte* data = result.storage.data() + row * result.stride;
    const float* from = &values[size_t(row) * cols];
    if (format == ActivationFormat::kInt8) {
      reference::Kernels().quantize(from, cols, data);
      continue;
    }
    for (int col = 0; col < cols; ++col) reference::StoreActivation(format, data, col, from[col]);
  }
  return result;
}

// One scratch for each of up to three threads.
std::byte* Scratch() {
  static std::vector<std::byte> storage(3 * kGemmScratchBytes + 64);
  return Align(storage);
}

class KernelsTest : public testing::TestWithParam<const KernelSet*> {
 protected:
  const KernelSet& kernels() const { return *GetParam(); }
};

struct GemmShape {
  int tokens;
  int rows;
  int cols;
};

constexpr GemmShape kShapes[] = {{1, 64, 64},   {2, 16, 3},    {3, 52, 37},   {5, 150, 90},
                                 {6, 128, 32},  {7, 1, 5},     {13, 65, 130}, {64, 200, 256},
                                 {100, 31, 48}, {200, 97, 66}, {49, 640, 34}};

TEST_P(KernelsTest, GemmEqualsTheReferenceForAwkwardShapesAndThreads) {
  for (const Formats& formats : kFormats) {
    for (const GemmShape& shape : kShapes) {
      const auto weights = RandomFloats(size_t(shape.rows) * shape.cols, 1);
      const Packed packed = Pack(formats, weights, shape.rows, shape.cols);
      const Rows rows =
          MakeRows(formats.activations, RandomFloats(size_t(shape.tokens) * shape.cols, 2),
                   shape.tokens, shape.cols);
      const auto bias = RandomFloats(shape.rows, 3);
      for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd}) {
        const auto run = [&](const KernelSet& set, int threads, GemmOrder order) {
          hardware::ThreadPool pool(std::vector<int>(threads, 0));
          std::vector<float> out(size_t(shape.tokens) * shape.rows, 0.5f);
          const GemmGroup group{
              .weights = &packed.matrix, .num_rows = shape.tokens, .bias = bias.data()};
          RunGroupedGemm(set, pool,
                         {.groups = {&group, 1},
                          .activations = formats.activations,
                          .rows = rows.storage.data(),
                          .row_stride = rows.stride,
                          .epilogue = epilogue,
                          .parameters = {.scale = shape.tokens % 2 == 0 ? 1.0f : 0.22f},
                          .out = reinterpret_cast<std::byte*>(out.data()),
                          .out_stride = int64_t{4} * shape.rows,
                          .scratch = Scratch(),
                          .order = order});
          return out;
        };
        const auto expected = run(reference::Kernels(), 1, GemmOrder::kGrouped);
        const auto actual = run(kernels(), 1, GemmOrder::kGrouped);
        ASSERT_EQ(actual, run(kernels(), 3, GemmOrder::kDense)) << "threads change the result";
        // Products are exact in double; each of the cols roundings is relative to partial sums.
        // Whole numbers are exact until two products and two sums.
        const double bound = formats.activations == ActivationFormat::kInt8
                                 ? 1e-5
                                 : 4 * kFloatEpsilon * shape.cols + 1e-5;
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_NEAR(actual[i], expected[i], bound) << formats.Describe() << " " << shape.tokens
                                                     << "x" << shape.rows << "x" << shape.cols;
        }
      }
    }
  }
}

TEST_P(KernelsTest, WholeNumbersGiveTheSameBitsOnEverySet) {
  // Panels of one to four vectors; for int4 the number of rows decides how it is unpacked, and the
  // depth in how many pieces.
  for (const auto& [tokens, num_rows, cols] :
       {GemmShape{1, 100, 700}, GemmShape{3, 100, 700}, GemmShape{4, 100, 700},
        GemmShape{16, 112, 130}, GemmShape{17, 48, 64}, GemmShape{40, 100, 700},
        GemmShape{70, 48, 4200}, GemmShape{300, 64, 70}}) {
    for (const Formats& formats : kFormats) {
      if (formats.activations != ActivationFormat::kInt8) continue;
      const Packed packed = Pack(formats, RandomFloats(size_t(num_rows) * cols, 5), num_rows, cols);
      const Rows rows =
          MakeRows(formats.activations, RandomFloats(size_t(tokens) * cols, 6), tokens, cols);
      const auto run = [&](const KernelSet& set) {
        hardware::ThreadPool pool({0});
        std::vector<float> out(size_t(tokens) * num_rows);
        const GemmGroup group{.weights = &packed.matrix, .num_rows = tokens};
        RunGroupedGemm(set, pool,
                       {.groups = {&group, 1},
                        .activations = formats.activations,
                        .rows = rows.storage.data(),
                        .row_stride = rows.stride,
                        .out = reinterpret_cast<std::byte*>(out.data()),
                        .out_stride = int64_t{4} * num_rows,
                        .scratch = Scratch()});
        return out;
      };
      EXPECT_EQ(run(kernels()), run(reference::Kernels())) << formats.Describe() << " " << tokens;
    }
  }
}

TEST_P(KernelsTest, TheLargestWholeNumbersDoNotOverflow) {
  // The worst case of each sum: all weights and all activations at their bounds, with one sign.
  constexpr int kRows = 16;
  constexpr int kCols = 16384;
  for (const Formats& formats : kFormats) {
    if (formats.activations != ActivationFormat::kInt8) continue;
    for (const float sign : {-1.0f, 1.0f}) {
      const Packed packed = Pack(formats, std::vector<float>(kRows * kCols, sign), kRows, kCols);
      for (const int tokens : {1, 30}) {
        const Rows rows = MakeRows(formats.activations,
                                   std::vector<float>(size_t(tokens) * kCols, 1.0f), tokens, kCols);
        hardware::ThreadPool pool({0});
        std::vector<float> out(size_t(tokens) * kRows);
        const GemmGroup group{.weights = &packed.matrix, .num_rows = tokens};
        RunGroupedGemm(kernels(), pool,
                       {.groups = {&group, 1},
                        .activations = formats.activations,
                        .rows = rows.storage.data(),
                        .row_stride = rows.stride,
                        .out = reinterpret_cast<std::byte*>(out.data()),
                        .out_stride = 4 * kRows,
                        .scratch = Scratch()});
        for (const float value : out) {
          ASSERT_NEAR(value, sign * kCols, 1e-5 * kCols) << formats.Describe();
        }
      }
    }
  }
}

TEST_P(KernelsTest, QuantizesAsTheReferenceBitForBit) {
  for (const int size : {1, 16, 37, 64, 100, 2048}) {
    for (const float scale : {1.0f, 1e-20f, 1e-38f, 0.0f, 1e30f}) {
      std::vector<float> x = RandomFloats(size, 8);
      for (float& value : x) value *= scale;
      const auto bytes = static_cast<size_t>(ActivationRowBytes(ActivationFormat::kInt8, size));
      std::vector<std::byte> expected(bytes), actual(bytes);
      reference::Kernels().quantize(x.data(), size, expected.data());
      kernels().quantize(x.data(), size, actual.data());
      EXPECT_EQ(expected, actual) << size << " times " << scale;
    }
  }
}

// Rows of activations as `epilogue` makes them, (tokens, width).
std::vector<std::byte> RunActivation(const KernelSet& set, const Formats& formats,
                                     const Packed& packed, const Rows& rows, int tokens, int width,
                                     Epilogue epilogue, const float* bias) {
  hardware::ThreadPool pool({0});
  const int64_t stride = ActivationRowBytes(formats.wide(), width);
  std::vector<std::byte> out(static_cast<size_t>(stride * tokens));
  const GemmGroup group{.weights = &packed.matrix, .num_rows = tokens, .bias = bias};
  RunGroupedGemm(set, pool,
                 {.groups = {&group, 1},
                  .activations = formats.activations,
                  .rows = rows.storage.data(),
                  .row_stride = rows.stride,
                  .epilogue = epilogue,
                  .parameters = {.limit = 3, .alpha = 1.702f},
                  .out_format = formats.wide(),
                  .out = out.data(),
                  .out_stride = stride,
                  .scratch = Scratch()});
  return out;
}

void ExpectSameActivations(const Formats& formats, const std::vector<std::byte>& actual,
                           const std::vector<std::byte>& expected, int tokens, int width) {
  const ActivationFormat wide = formats.wide();
  const int64_t stride = ActivationRowBytes(wide, width);
  for (int token = 0; token < tokens; ++token) {
    for (int i = 0; i < PaddedDepth(width); ++i) {
      const float want = reference::LoadActivation(wide, &expected[token * stride], i);
      const float got = reference::LoadActivation(wide, &actual[token * stride], i);
      // A sum beside the middle of two activations may be rounded to either.
      ASSERT_NEAR(got, want, 1e-4 + 2 * EpsilonOf(wide) * std::abs(want)) << formats.Describe();
      if (i >= width) {
        ASSERT_EQ(got, 0.0f) << "padding must stay zero";
      }
    }
  }
}

constexpr GemmShape kActivationShapes[] = {{1, 37, 20}, {9, 90, 52}, {17, 64, 33}, {70, 5, 8}};

TEST_P(KernelsTest, GateAndUpAreMultipliedThroughSiluOrClampedSwiglu) {
  for (const Formats& formats : kFormats) {
    for (const auto& [tokens, intermediate, cols] : kActivationShapes) {
      const Packed packed =
          PackGateUp(formats, RandomFloats(size_t(intermediate) * cols, 1),
                     RandomFloats(size_t(intermediate) * cols, 2), intermediate, cols);
      const Rows rows =
          MakeRows(formats.activations, RandomFloats(size_t(tokens) * cols, 3), tokens, cols);
      std::vector<float> bias = RandomFloats(packed.matrix.rows, 4);
      for (int i = 0; i < packed.matrix.rows; ++i) {
        if (GateUpRowAt(intermediate, i).row >= intermediate) bias[i] = 0;
      }
      for (const Epilogue epilogue : {Epilogue::kSiluMul, Epilogue::kClampedSwiglu}) {
        for (const float* given : std::initializer_list<const float*>{nullptr, bias.data()}) {
          const auto run = [&](const KernelSet& set) {
            return RunActivation(set, formats, packed, rows, tokens, intermediate, epilogue, given);
          };
          ExpectSameActivations(formats, run(kernels()), run(reference::Kernels()), tokens,
                                intermediate);
        }
      }
    }
  }
}

TEST_P(KernelsTest, ReluIsOneMatrixWithoutAGate) {
  for (const Formats& formats : kFormats) {
    for (const auto& [tokens, intermediate, cols] : kActivationShapes) {
      const Packed packed =
          Pack(formats, RandomFloats(size_t(intermediate) * cols, 1), intermediate, cols);
      const Rows rows =
          MakeRows(formats.activations, RandomFloats(size_t(tokens) * cols, 3), tokens, cols);
      const std::vector<float> bias = RandomFloats(intermediate, 4);
      for (const float* given : std::initializer_list<const float*>{nullptr, bias.data()}) {
        const auto run = [&](const KernelSet& set) {
          return RunActivation(set, formats, packed, rows, tokens, intermediate, Epilogue::kRelu,
                               given);
        };
        const auto actual = run(kernels());
        ExpectSameActivations(formats, actual, run(reference::Kernels()), tokens, intermediate);
        int zeros = 0;
        for (int i = 0; i < intermediate; ++i) {
          const float value = reference::LoadActivation(formats.wide(), actual.data(), i);
          ASSERT_GE(value, 0.0f);
          zeros += value == 0 ? 1 : 0;
        }
        if (intermediate > 30) {
          EXPECT_LT(zeros, intermediate);
        }
      }
    }
  }
}

TEST(ReferenceKernels, ClampedSwigluIsWhatItsFormulaSays) {
  const Formats formats{WeightFormat::kF32, ActivationFormat::kF32};
  for (const auto& [gate, up] : {std::pair{1.0f, 2.0f}, {9.0f, 5.0f}, {-20.0f, -7.0f}}) {
    const Packed packed = PackGateUp(formats, {gate}, {up}, 1, 1);
    const Rows rows = MakeRows(formats.activations, {1.0f}, 1, 1);
    const auto out = RunActivation(reference::Kernels(), formats, packed, rows, 1, 1,
                                   Epilogue::kClampedSwiglu, nullptr);
    const double g = std::min(gate, 3.0f);
    const double u = std::clamp(up, -3.0f, 3.0f);
    EXPECT_NEAR(reference::LoadActivation(ActivationFormat::kF32, out.data(), 0),
                g / (1 + std::exp(-1.702 * g)) * (u + 1), 1e-5);
  }
}

TEST_P(KernelsTest, ManyGroupsAreAsEachAlone) {
  constexpr int kCols = 70;
  constexpr int kRows = 100;
  for (const Formats& formats : kFormats) {
    std::vector<Packed> experts;
    for (uint32_t i = 0; i < 5; ++i) {
      experts.push_back(Pack(formats, RandomFloats(kRows * kCols, i), kRows, kCols));
    }
    const Rows rows = MakeRows(formats.activations, RandomFloats(60 * kCols, 9), 60, kCols);
    const std::vector<GemmGroup> groups = {{&experts[0].matrix, 0, 1},
                                           {&experts[1].matrix, 1, 40},
                                           {&experts[3].matrix, 41, 2},
                                           {&experts[4].matrix, 43, 17}};
    hardware::ThreadPool pool({0, 0});
    const auto run = [&](std::span<const GemmGroup> some, GemmOrder order) {
      std::vector<float> out(60 * kRows);
      RunGroupedGemm(kernels(), pool,
                     {.groups = some,
                      .activations = formats.activations,
                      .rows = rows.storage.data(),
                      .row_stride = rows.stride,
                      .out = reinterpret_cast<std::byte*>(out.data()),
                      .out_stride = 4 * kRows,
                      .scratch = Scratch(),
                      .order = order});
      return out;
    };
    const auto together = run(groups, GemmOrder::kGrouped);
    EXPECT_EQ(together, run(groups, GemmOrder::kDense));
    for (const GemmGroup& group : groups) {
      for (int row = group.first_row; row < group.first_row + group.num_rows; ++row) {
        // Alone, as the only row of its own call: bitwise the same.
        const GemmGroup single{.weights = group.weights, .first_row = row, .num_rows = 1};
        const auto alone = run({&single, 1}, GemmOrder::kGrouped);
        const size_t at = size_t(row) * kRows;
        ASSERT_TRUE(std::equal(&alone[at], &alone[at] + kRows, &together[at]))
            << formats.Describe();
      }
    }
  }
}

TEST_P(KernelsTest, NormalizesAsTheReference) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const int size : {1, 16, 37, 52, 2048}) {
      const auto x = RandomFloats(size, 4);
      const auto weight = RandomFloats(size, 5);
      for (const ActivationFormat format : {ActivationFormat::kF32, ActivationFormat::kBf16}) {
        const Norm norm{.kind = kind,
                        .format = format,
                        .epsilon = 1e-5f,
                        .weight = weight.data(),
                        .size = size};
        std::vector<float> expected(size), actual(size);
        std::vector<float> expected_rows(PaddedDepth(size), 7.0f);
        std::vector<float> actual_rows(PaddedDepth(size), 7.0f);
        reference::Kernels().normalize(norm, x.data(), expected_rows.data(), expected.data());
        kernels().normalize(norm, x.data(), actual_rows.data(), actual.data());
        for (int i = 0; i < PaddedDepth(size); ++i) {
          const float want = reference::LoadActivation(format, expected_rows.data(), i);
          const float got = reference::LoadActivation(format, actual_rows.data(), i);
          ASSERT_NEAR(got, want, 1e-5 + EpsilonOf(format) * std::abs(want)) << size;
          if (i < size) {
            ASSERT_NEAR(actual[i], expected[i], 1e-5);
          }
        }
      }
    }
  }
}

struct AttentionCase {
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int length;
  int window;
  QkNormKind norm;
  float clip;
};

constexpr AttentionCase kAttentionCases[] = {
    {4, 4, 24, 17, 0, QkNormKind::kNone, 0},
    {8, 2, 80, 130, 0, QkNormKind::kPerHead, 0},
    {6, 1, 136, 90, 33, QkNormKind::kWholeProjection, 0.7f},
    {2, 1, 16, 1100, 0, QkNormKind::kNone, 0},
    {2, 2, 16, 1100, 600, QkNormKind::kNone, 0},
    {60, 1, 8, 70, 0, QkNormKind::kNone, 0},
    // Heads that a matrix unit takes.
    {8, 2, 128, 130, 0, QkNormKind::kPerHead, 0},
    {2, 1, 64, 1100, 600, QkNormKind::kNone, 0},
    {3, 1, 96, 70, 0, QkNormKind::kNone, 0},
};

// A whole sequence through prepare_qkv and attend, in chunks of the given size.
class AttentionRun {
 public:
  AttentionRun(const KernelSet& kernels, KvFormat format, const AttentionCase& c)
      : kernels_(kernels),
        format_(format),
        case_(c),
        width_((c.num_heads + 2 * c.num_kv_heads) * c.head_dim) {
    const int num_blocks = (c.length + kKvBlockTokens - 1) / kKvBlockTokens;
    head_stride_ = KeyBlockBytes(format, c.head_dim) + ValueBlockBytes(format, c.head_dim);
    block_stride_ = head_stride_ * c.num_kv_heads;
    cache_.resize(static_cast<size_t>(block_stride_ * num_blocks) + 64);
    scratch_.resize(AttentionScratchBytes(c.head_dim, c.head_dim) + 64);
    for (int i = 0; i < num_blocks; ++i) blocks_.push_back(num_blocks - 1 - i);
    query_norm_ = RandomFloats(size_t(c.num_heads) * c.head_dim, 11);
    key_norm_ = RandomFloats(size_t(c.num_kv_heads) * c.head_dim, 12);
  }

  // With `in_spans` each span is computed by itself and all are merged afterwards.
  std::vector<float> Run(const std::vector<float>& qkv, int chunk, bool in_spans = false) {
    const ActivationFormat compute = QueryFormat(format_);
    const int64_t element = ElementBytes(compute);
    const int64_t query_stride = PaddedHead(case_.head_dim) * element;
    const int64_t out_stride = case_.head_dim * element;
    std::vector<std::byte> queries(static_cast<size_t>(query_stride * case_.num_heads * chunk));
    std::vector<std::byte> out(static_cast<size_t>(out_stride * case_.num_heads * case_.length));
    const int group = case_.num_heads / case_.num_kv_heads;
    for (int begin = 0; begin < case_.length; begin += chunk) {
      const int count = std::min(chunk, case_.length - begin);
      for (int token = 0; token < count; ++token) {
        Prepare(qkv, begin + token, &queries[token * query_stride * case_.num_heads]);
      }
      for (int head = 0; head < case_.num_heads; ++head) {
        const int tokens_per_call = kAttentionRows;
        for (int token = 0; token < count; token += tokens_per_call) {
          Attend({.format = format_,
                  .out_format = compute,
                  .key_dim = case_.head_dim,
                  .value_dim = case_.head_dim,
                  .scale = 0.2f,
                  .window = case_.window,
                  .num_tokens = std::min(tokens_per_call, count - token),
                  .num_heads = 1,
                  .first_position = begin + token,
                  .queries = &queries[(token * case_.num_heads + head) * query_stride],
                  .query_token_stride = query_stride * case_.num_heads,
                  .query_head_stride = query_stride,
                  .kv = Align(cache_) + head / group * head_stride_,
                  .blocks = blocks_.data(),
                  .kv_block_stride = block_stride_,
                  .out = &out[((begin + token) * case_.num_heads + head) * out_stride],
                  .out_token_stride = out_stride * case_.num_heads,
                  .out_head_stride = out_stride,
                  .scratch = Align(scratch_)},
                 in_spans);
        }
      }
    }
    std::vector<float> result;
    for (int i = 0; i < case_.length * case_.num_heads * case_.head_dim; ++i) {
      result.push_back(reference::LoadActivation(compute, out.data(), i));
    }
    return result;
  }

 private:
  void Attend(const Attention& attention, bool in_spans) {
    if (!in_spans) return kernels_.attend(attention);
    const int span_floats =
        attention.num_tokens * attention.num_heads * SpanRowFloats(attention.value_dim);
    const int first = FirstSpan(attention);
    std::vector<float> partials(size_t(EndSpan(attention) - first) * span_floats);
    for (int span = EndSpan(attention) - 1; span >= first; --span) {
      kernels_.attend_span(attention, span, &partials[size_t(span - first) * span_floats]);
    }
    kernels_.merge_spans(attention, partials.data());
  }

  void Prepare(const std::vector<float>& qkv, int position, std::byte* queries) {
    const int half = case_.head_dim / 2;
    std::vector<float> cosine(half), sine(half);
    for (int i = 0; i < half; ++i) {
      cosine[i] = std::cos(static_cast<float>(position) / static_cast<float>(1 + i));
      sine[i] = std::sin(static_cast<float>(position) / static_cast<float>(1 + i));
    }
    std::vector<float> row(qkv.begin() + int64_t{position} * width_,
                           qkv.begin() + int64_t{position + 1} * width_);
    kernels_.prepare_qkv(
        {.format = format_,
         .num_heads = case_.num_heads,
         .num_kv_heads = case_.num_kv_heads,
         .head_dim = case_.head_dim,
         .value_dim = case_.head_dim,
         .rotary_dim = case_.head_dim,
         .norm = case_.norm,
         .epsilon = 1e-6f,
         .query_norm = query_norm_.data(),
         .key_norm = key_norm_.data(),
         .clip = case_.clip},
        {.qkv = row.data(),
         .cosine = cosine.data(),
         .sine = sine.data(),
         .queries = queries,
         .kv_block = Align(cache_) + blocks_[position / kKvBlockTokens] * block_stride_,
         .kv_head_stride = head_stride_,
         .slot = position % kKvBlockTokens});
  }

  const KernelSet& kernels_;
  KvFormat format_;
  AttentionCase case_;
  int width_;
  int64_t head_stride_ = 0;
  int64_t block_stride_ = 0;
  std::vector<std::byte> cache_;
  std::vector<std::byte> scratch_;
  std::vector<int32_t> blocks_;
  std::vector<float> query_norm_;
  std::vector<float> key_norm_;
};

TEST_P(KernelsTest, AttentionEqualsTheReferenceAndDoesNotDependOnChunks) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8}) {
    for (const AttentionCase& c : kAttentionCases) {
      const auto describe = [&] {
        return std::to_string(KvElementBytes(format)) + " bytes, head_dim " +
               std::to_string(c.head_dim);
      };
      const auto qkv =
          RandomFloats(size_t(c.length) * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim, 21);
      const auto whole = AttentionRun(kernels(), format, c).Run(qkv, c.length);
      const auto chunked = AttentionRun(kernels(), format, c).Run(qkv, 7);
      ASSERT_EQ(whole, chunked) << describe();
      const auto in_spans = AttentionRun(kernels(), format, c).Run(qkv, 7, true);
      const bool is_reference = &kernels() == &reference::Kernels();
      const bool f32 = format == KvFormat::kF32;
      if (is_reference) {
        // The reference keeps more precision in one piece than in spans.
        for (size_t i = 0; i < whole.size(); ++i) {
          ASSERT_NEAR(in_spans[i], whole[i],
                      (f32 ? 1e-5 : 4 * kBf16Epsilon) * (1 + std::abs(whole[i])))
              << describe();
        }
        continue;
      }
      ASSERT_EQ(whole, in_spans) << describe();
      const auto expected = AttentionRun(reference::Kernels(), format, c).Run(qkv, c.length);
      // The probabilities are rounded to the format relative to another maximum, the output again.
      const double bound = f32 ? 2e-4 : 4 * kBf16Epsilon;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(whole[i], expected[i], bound * (1 + std::abs(expected[i])))
            << describe() << " at " << i;
      }
    }
  }
}

TEST_P(KernelsTest, CombineFollowsTheMerges) {
  for (const int size : {1, 16, 45}) {
    const auto a = RandomFloats(size, 1), b = RandomFloats(size, 2), c = RandomFloats(size, 3);
    const auto shared = RandomFloats(size, 4);
    const float* rows[] = {a.data(), b.data(), c.data()};
    const float weights[] = {0.5f, 0.25f, 0.125f};
    const Merge merges[] = {{1, 2}, {0, 1}};
    std::vector<float> actual(size, 1.0f), expected(size, 1.0f);
    Combine combine{.rows = rows,
                    .weights = weights,
                    .merges = merges,
                    .count = 3,
                    .shared = shared.data(),
                    .shared_weight = 0.75f,
                    .size = size};
    combine.out = actual.data();
    kernels().combine(combine);
    combine.out = expected.data();
    reference::Kernels().combine(combine);
    EXPECT_EQ(actual, expected) << size;
    const auto sum = [&](int i) {
      return 0.5f * a[i] + (0.25f * b[i] + 0.125f * c[i]) + 0.75f * shared[i];
    };
    for (int i = 0; i < size; ++i) EXPECT_NEAR(actual[i], 1 + sum(i), 1e-5);
    combine.scale = 0.25f;
    reference::Kernels().combine(combine);
    combine.out = actual.data();
    kernels().combine(combine);
    EXPECT_EQ(actual, expected) << size;
    for (int i = 0; i < size; ++i) EXPECT_NEAR(actual[i], 1 + 1.25f * sum(i), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(EverySet, KernelsTest,
                         testing::ValuesIn(SupportedKernels().begin(), SupportedKernels().end()),
                         [](const auto& set) { return std::string(set.param->name); });

TEST(UnpackRow, GivesBackWhatWasPacked) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    std::vector<float> weights = RandomFloats(100 * 37, 8);
    for (float& w : weights) w = tensor::FloatFromBf16(tensor::Bf16FromFloat(w));
    const Packed packed = Pack({format, {}}, weights, 100, 37);
    std::vector<float> row(37);
    for (const int i : {0, 15, 63, 64, 99}) {
      UnpackRow(packed.matrix, i, row.data());
      EXPECT_TRUE(std::equal(row.begin(), row.end(), weights.begin() + i * 37));
    }
  }
}

TEST(Pack, IntegersAreWithinHalfAStepOfTheWeights) {
  constexpr int kRows = 70;
  constexpr int kCols = 333;
  const std::vector<float> weights = RandomFloats(kRows * kCols, 8);
  std::vector<float> row(kCols);
  for (const Formats& formats : kFormats) {
    if (!IsInteger(formats.weights)) continue;
    const Packed packed = Pack(formats, weights, kRows, kCols);
    for (int i = 0; i < kRows; ++i) {
      UnpackRow(packed.matrix, i, row.data());
      const std::span expected(&weights[size_t(i) * kCols], kCols);
      const auto larger = [](float a, float b) { return std::abs(a) < std::abs(b); };
      const float top = std::abs(*std::max_element(expected.begin(), expected.end(), larger));
      double error = 0;
      double energy = 0;
      for (int col = 0; col < kCols; ++col) {
        error += std::pow(row[col] - expected[col], 2);
        energy += std::pow(expected[col], 2);
        if (formats.weights == WeightFormat::kInt8) {
          ASSERT_LE(std::abs(row[col] - expected[col]), 0.5001f * top / 127);
        } else {
          // Clipping at most as far as the smallest scale that is tried: 0.85 of the reaching one,
          // rounded down to a whole number, and the step's half.
          ASSERT_LE(std::abs(row[col] - expected[col]), 0.3f * top);
        }
      }
      // A normal distribution in 4 bits: steps of about 2.3 deviations / 8 and noise of a step by
      // the root of 12.
      if (formats.weights == WeightFormat::kInt4) {
        EXPECT_LE(std::sqrt(error / energy), formats.group == 32 ? 0.095 : 0.12)
            << formats.Describe();
      }
    }
  }
}

TEST(PackGroup, ReadsTransposedAndUnalignedSources) {
  // Stored (cols x rows) as bf16 at an odd address.
  constexpr int kRows = 20;
  constexpr int kCols = 7;
  std::vector<std::byte> bytes(1 + 2 * kRows * kCols);
  std::vector<float> expected(kRows * kCols);
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < kCols; ++col) {
      const auto value = static_cast<float>(row * kCols + col - 50);
      expected[row * kCols + col] = value;
      const tensor::Bf16 bits = tensor::Bf16FromFloat(value);
      std::memcpy(&bytes[1 + 2 * (col * kRows + row)], &bits, 2);
    }
  }
  PackedMatrix matrix{.format = WeightFormat::kBf16, .rows = kRows, .cols = kCols};
  std::vector<std::byte> storage(matrix.size_bytes() + 64);
  std::byte* data = Align(storage);
  matrix.data = data;
  const StoredMatrix source{.dtype = tensor::DType::kBf16,
                            .data = bytes.data() + 1,
                            .row_stride = 1,
                            .col_stride = kRows,
                            .rows = kRows,
                            .cols = kCols};
  PackRows(matrix, data, [&](int row) -> RowSource {
    return row < kRows ? RowSource{&source, row} : RowSource{};
  });
  std::vector<float> row(kCols);
  for (int i = 0; i < kRows; ++i) {
    UnpackRow(matrix, i, row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), expected.begin() + i * kCols)) << i;
  }
}

}  // namespace
}  // namespace convene::kernels
