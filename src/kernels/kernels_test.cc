// Every kernel set that this machine can run against the reference, and the property that a row's
// result does not depend on which rows come with it.
#include "kernels/reference/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
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

double EpsilonOf(WeightFormat format) {
  return format == WeightFormat::kF32 ? kFloatEpsilon : kBf16Epsilon;
}

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

Packed Pack(WeightFormat format, const std::vector<float>& weights, int rows, int cols) {
  Packed packed;
  packed.matrix = {.format = format, .rows = rows, .cols = cols};
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
Packed PackGateUp(WeightFormat format, const std::vector<float>& gate, const std::vector<float>& up,
                  int intermediate, int cols) {
  Packed packed;
  packed.matrix = {.format = format, .rows = GateUpRows(intermediate), .cols = cols};
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
  std::vector<const void*> pointers;
  int64_t stride = 0;
};

Rows MakeRows(WeightFormat format, const std::vector<float>& values, int rows, int cols) {
  Rows result;
  result.stride = static_cast<int64_t>(ActivationBytes(format)) * PaddedActivations(cols);
  result.storage.resize(static_cast<size_t>(result.stride * rows));
  for (int row = 0; row < rows; ++row) {
    std::byte* data = result.storage.data() + row * result.stride;
    for (int col = 0; col < cols; ++col) {
      reference::StoreActivation(format, data, col, values[size_t(row) * cols + col]);
    }
    result.pointers.push_back(data);
  }
  return result;
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
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const GemmShape& shape : kShapes) {
      const auto weights = RandomFloats(size_t(shape.rows) * shape.cols, 1);
      const Packed packed = Pack(format, weights, shape.rows, shape.cols);
      const Rows rows = MakeRows(format, RandomFloats(size_t(shape.tokens) * shape.cols, 2),
                                 shape.tokens, shape.cols);
      const auto bias = RandomFloats(shape.rows, 3);
      for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd}) {
        const auto run = [&](const KernelSet& set, int threads) {
          hardware::ThreadPool pool(std::vector<int>(threads, 0));
          std::vector<float> out(size_t(shape.tokens) * shape.rows, 0.5f);
          const GemmGroup group{.weights = &packed.matrix, .num_rows = shape.tokens};
          RunGroupedGemm(set, pool,
                         {.groups = {&group, 1},
                          .rows = rows.pointers.data(),
                          .epilogue = epilogue,
                          .out = out.data(),
                          .out_stride = int64_t{4} * shape.rows,
                          .bias = bias.data()});
          return out;
        };
        const auto expected = run(reference::Kernels(), 1);
        const auto actual = run(kernels(), 1);
        ASSERT_EQ(actual, run(kernels(), 3)) << "threads change the result";
        // Products are exact in double; each of the cols roundings is relative to partial sums.
        const double bound = 4 * kFloatEpsilon * shape.cols + 1e-5;
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_NEAR(actual[i], expected[i], bound)
              << Name(format) << " " << shape.tokens << "x" << shape.rows << "x" << shape.cols;
        }
      }
    }
  }
}

TEST_P(KernelsTest, GateAndUpAreMultipliedThroughSilu) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const auto& [tokens, intermediate, cols] :
         {GemmShape{1, 37, 20}, GemmShape{9, 90, 52}, GemmShape{17, 64, 33}, GemmShape{70, 5, 8}}) {
      const Packed packed =
          PackGateUp(format, RandomFloats(size_t(intermediate) * cols, 1),
                     RandomFloats(size_t(intermediate) * cols, 2), intermediate, cols);
      const Rows rows = MakeRows(format, RandomFloats(size_t(tokens) * cols, 3), tokens, cols);
      const int64_t stride =
          static_cast<int64_t>(ActivationBytes(format)) * PaddedActivations(intermediate);
      const auto run = [&](const KernelSet& set) {
        hardware::ThreadPool pool({0});
        std::vector<std::byte> out(static_cast<size_t>(stride * tokens));
        const GemmGroup group{.weights = &packed.matrix, .num_rows = tokens};
        RunGroupedGemm(set, pool,
                       {.groups = {&group, 1},
                        .rows = rows.pointers.data(),
                        .epilogue = Epilogue::kSiluMul,
                        .out = out.data(),
                        .out_stride = stride});
        return out;
      };
      const auto expected = run(reference::Kernels());
      const auto actual = run(kernels());
      for (int token = 0; token < tokens; ++token) {
        for (int i = 0; i < PaddedActivations(intermediate); ++i) {
          const float want = reference::LoadActivation(format, &expected[token * stride], i);
          const float got = reference::LoadActivation(format, &actual[token * stride], i);
          ASSERT_NEAR(got, want, 1e-4 + EpsilonOf(format) * std::abs(want));
          if (i >= intermediate) {
            ASSERT_EQ(got, 0.0f) << "padding must stay zero";
          }
        }
      }
    }
  }
}

TEST_P(KernelsTest, ManyGroupsAreAsEachAlone) {
  const WeightFormat format = WeightFormat::kBf16;
  constexpr int kCols = 70;
  constexpr int kRows = 100;
  std::vector<Packed> experts;
  for (uint32_t i = 0; i < 5; ++i) {
    experts.push_back(Pack(format, RandomFloats(kRows * kCols, i), kRows, kCols));
  }
  const Rows rows = MakeRows(format, RandomFloats(60 * kCols, 9), 60, kCols);
  const std::vector<GemmGroup> groups = {{&experts[0].matrix, 0, 1},
                                         {&experts[1].matrix, 1, 40},
                                         {&experts[3].matrix, 41, 2},
                                         {&experts[4].matrix, 43, 17}};
  std::vector<float> out(60 * kRows);
  hardware::ThreadPool pool({0, 0});
  RunGroupedGemm(
      kernels(), pool,
      {.groups = groups, .rows = rows.pointers.data(), .out = out.data(), .out_stride = 4 * kRows});
  for (const GemmGroup& group : groups) {
    for (int row = group.first_row; row < group.first_row + group.num_rows; ++row) {
      // Alone, as the only row of its own call: bitwise the same.
      std::vector<float> alone(kRows);
      const GemmGroup single{.weights = group.weights, .first_row = row, .num_rows = 1};
      RunGroupedGemm(kernels(), pool,
                     {.groups = {&single, 1},
                      .rows = rows.pointers.data(),
                      .out = alone.data() - int64_t{row} * kRows,
                      .out_stride = 4 * kRows});
      ASSERT_EQ(std::memcmp(alone.data(), &out[size_t(row) * kRows], sizeof(float) * kRows), 0);
    }
  }
}

TEST_P(KernelsTest, NormalizesAsTheReference) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const int size : {1, 16, 37, 52, 2048}) {
      const auto x = RandomFloats(size, 4);
      const auto weight = RandomFloats(size, 5);
      for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
        const Norm norm{.kind = kind,
                        .format = format,
                        .epsilon = 1e-5f,
                        .weight = weight.data(),
                        .size = size};
        std::vector<float> expected(size), actual(size);
        std::vector<float> expected_rows(PaddedActivations(size), 7.0f);
        std::vector<float> actual_rows(PaddedActivations(size), 7.0f);
        reference::Kernels().normalize(norm, x.data(), expected_rows.data(), expected.data());
        kernels().normalize(norm, x.data(), actual_rows.data(), actual.data());
        for (int i = 0; i < PaddedActivations(size); ++i) {
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
};

// A whole sequence through prepare_qkv and attend, in chunks of the given size.
class AttentionRun {
 public:
  AttentionRun(const KernelSet& kernels, WeightFormat format, const AttentionCase& c)
      : kernels_(kernels),
        format_(format),
        case_(c),
        width_((c.num_heads + 2 * c.num_kv_heads) * c.head_dim) {
    const int num_blocks = (c.length + kKvBlockTokens - 1) / kKvBlockTokens;
    head_stride_ = static_cast<int64_t>(KeyBlockBytes(format, c.head_dim) +
                                        ValueBlockBytes(format, c.head_dim));
    block_stride_ = head_stride_ * c.num_kv_heads;
    cache_.resize(static_cast<size_t>(block_stride_ * num_blocks) + 64);
    scratch_.resize(AttentionScratchBytes(c.head_dim) + 64);
    for (int i = 0; i < num_blocks; ++i) blocks_.push_back(num_blocks - 1 - i);
    query_norm_ = RandomFloats(size_t(c.num_heads) * c.head_dim, 11);
    key_norm_ = RandomFloats(size_t(c.num_kv_heads) * c.head_dim, 12);
  }

  std::vector<float> Run(const std::vector<float>& qkv, int chunk) {
    const int64_t element = static_cast<int64_t>(ActivationBytes(format_));
    const int64_t query_stride = PaddedActivations(case_.head_dim) * element;
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
          kernels_.attend({.format = format_,
                           .head_dim = case_.head_dim,
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
                           .scratch = Align(scratch_)});
        }
      }
    }
    std::vector<float> result;
    for (int i = 0; i < case_.length * case_.num_heads * case_.head_dim; ++i) {
      result.push_back(reference::LoadActivation(format_, out.data(), i));
    }
    return result;
  }

 private:
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
  WeightFormat format_;
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
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const AttentionCase& c : kAttentionCases) {
      const auto qkv =
          RandomFloats(size_t(c.length) * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim, 21);
      const auto whole = AttentionRun(kernels(), format, c).Run(qkv, c.length);
      const auto chunked = AttentionRun(kernels(), format, c).Run(qkv, 7);
      ASSERT_EQ(whole, chunked) << Name(format) << " head_dim " << c.head_dim;
      if (&kernels() == &reference::Kernels()) continue;
      const auto expected = AttentionRun(reference::Kernels(), format, c).Run(qkv, c.length);
      // The probabilities are rounded to the format relative to another maximum, the output again.
      const double bound = format == WeightFormat::kF32 ? 2e-4 : 4 * kBf16Epsilon;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(whole[i], expected[i], bound * (1 + std::abs(expected[i])))
            << Name(format) << " head_dim " << c.head_dim << " at " << i;
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
    for (int i = 0; i < size; ++i) {
      EXPECT_NEAR(actual[i], 1 + 0.5f * a[i] + (0.25f * b[i] + 0.125f * c[i]) + 0.75f * shared[i],
                  1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EverySet, KernelsTest,
                         testing::ValuesIn(SupportedKernels().begin(), SupportedKernels().end()),
                         [](const auto& set) { return std::string(set.param->name); });

TEST(UnpackRow, GivesBackWhatWasPacked) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    std::vector<float> weights = RandomFloats(100 * 37, 8);
    for (float& w : weights) w = tensor::FloatFromBf16(tensor::Bf16FromFloat(w));
    const Packed packed = Pack(format, weights, 100, 37);
    std::vector<float> row(37);
    for (const int i : {0, 15, 63, 64, 99}) {
      UnpackRow(packed.matrix, i, row.data());
      EXPECT_TRUE(std::equal(row.begin(), row.end(), weights.begin() + i * 37));
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
