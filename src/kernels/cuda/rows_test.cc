#include "kernels/cuda/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/device_memory_test.h"
#include "kernels/reference/kernels.h"
#include "tensor/dtype.h"

namespace convene::kernels::cuda {
namespace {

using tensor::Bf16FromFloat;
using tensor::FloatFromBf16;

constexpr double kBf16Rounding = 1.0 / 256;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<Bf16> Bf16s(const std::vector<float>& values) {
  std::vector<Bf16> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), Bf16FromFloat);
  return bits;
}

// One rounding to bf16 may go the other way.
void ExpectNearBf16(float expected, Bf16 got, const char* what, int64_t at) {
  EXPECT_NEAR(FloatFromBf16(got), expected, kBf16Rounding * std::abs(expected) + 1e-5)
      << what << " at " << at;
}

TEST(CudaRows, EmbedsScaledRowsOfTheTable) {
  for (const int size : {8, 2048, 2056, 37}) {
    const int64_t table_stride = size % 8 == 0 ? size + 8 : size + 1;
    const int64_t out_stride = size % 4 == 0 ? size + 4 : size + 3;
    const std::vector<Bf16> table = Bf16s(Floats(static_cast<size_t>(11 * table_stride), 1));
    const std::vector<int32_t> tokens = {10, 0, 3, 3};
    const DeviceArray<Bf16> on_device(table);
    const DeviceArray<int32_t> device_tokens(tokens);
    const DeviceArray<float> out(std::vector<float>(static_cast<size_t>(4 * out_stride), 7.0f));
    Embed({.table = on_device.data(),
           .table_stride = table_stride,
           .tokens = device_tokens.data(),
           .num_rows = 4,
           .size = size,
           .scale = 1.5f,
           .out = out.data(),
           .out_stride = out_stride},
          nullptr);
    const std::vector<float> host = out.Host();
    for (int row = 0; row < 4; ++row) {
      for (int i = 0; i < size; ++i) {
        EXPECT_EQ(host[row * out_stride + i],
                  1.5f * FloatFromBf16(table[tokens[row] * table_stride + i]));
      }
      EXPECT_EQ(host[row * out_stride + size], 7.0f);
    }
  }
}

void ExpectNormalized(NormKind kind, int size, int64_t x_stride, bool floats) {
  constexpr int kRows = 3;
  SCOPED_TRACE(testing::Message() << "size " << size << ", stride " << x_stride);
  const int padded = PaddedDepth(size);
  std::vector<float> x = Floats(static_cast<size_t>(kRows * x_stride), 2);
  for (float& value : x) value = 3 * value + 0.5f;
  const std::vector<float> weight = Floats(static_cast<size_t>(size), 3);
  const DeviceArray<float> device_x(x);
  const DeviceArray<float> device_weight(weight);
  const DeviceArray<Bf16> out(std::vector<Bf16>(static_cast<size_t>(kRows * padded), 0x7fff));
  const DeviceArray<float> out_float(static_cast<size_t>(kRows * x_stride));
  Normalize({.kind = kind,
             .epsilon = 1e-5f,
             .weight = device_weight.data(),
             .size = size,
             .num_rows = kRows,
             .x = device_x.data(),
             .x_stride = x_stride,
             .out = out.data(),
             .out_stride = padded,
             .out_float = floats ? out_float.data() : nullptr,
             .out_float_stride = x_stride},
            nullptr);
  const std::vector<Bf16> host = out.Host();
  const std::vector<float> host_float = out_float.Host();
  for (int row = 0; row < kRows; ++row) {
    std::vector<float> expected(static_cast<size_t>(size));
    reference::Kernels().normalize(
        {.kind = kind, .epsilon = 1e-5f, .weight = weight.data(), .size = size},
        x.data() + row * x_stride, nullptr, expected.data());
    for (int i = 0; i < size; ++i) {
      ExpectNearBf16(expected[i], host[row * padded + i], "bf16", i);
      if (floats) {
        EXPECT_NEAR(host_float[row * x_stride + i], expected[i],
                    2e-6 * std::abs(expected[i]) + 2e-6);
      }
    }
    for (int i = size; i < padded; ++i) EXPECT_EQ(host[row * padded + i], 0);
  }
}

TEST(CudaRows, NormalizesAsTheReferenceDoes) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const int size : {1, 5, 64, 100, 512, 1024, 1028, 2048, 2880, 4097, 7168, 8200, 16384}) {
      ExpectNormalized(kind, size, (size + 3) / 4 * 4, size % 3 == 0);
      ExpectNormalized(kind, size, size + 5, true);
    }
  }
}

TEST(CudaRows, ANormOfARowIsTheSameHoweverItLies) {
  const int size = 1536;
  const std::vector<float> x = Floats(static_cast<size_t>(size), 4);
  const DeviceArray<float> weight(Floats(static_cast<size_t>(size), 5));
  std::vector<std::vector<float>> outputs;
  for (const int shift : {0, 1}) {
    std::vector<float> shifted(static_cast<size_t>(shift), 0.0f);
    shifted.insert(shifted.end(), x.begin(), x.end());
    const DeviceArray<float> device_x(shifted);
    const DeviceArray<float> out(static_cast<size_t>(size));
    Normalize({.epsilon = 1e-6f,
               .weight = weight.data(),
               .size = size,
               .num_rows = 1,
               .x = device_x.data() + shift,
               .x_stride = size,
               .out_float = out.data(),
               .out_float_stride = size},
              nullptr);
    outputs.push_back(out.Host());
  }
  EXPECT_EQ(outputs[0], outputs[1]);
}

// One call of PrepareQkv or StoreKv and what the reference makes of its rows.
struct QkvCase {
  int num_rows = 3;
  QkvShape shape;
  int extra_stride = 0;

  int64_t query_dim() const { return int64_t{shape.num_heads} * shape.head_dim; }
  int64_t key_dim() const { return int64_t{shape.num_kv_heads} * shape.head_dim; }
  int64_t value_dim() const { return int64_t{shape.num_kv_heads} * shape.value_dim; }
  int64_t qkv_dim() const { return query_dim() + key_dim() + value_dim(); }
};

void ExpectPrepared(const QkvCase& c) {
  const QkvShape& shape = c.shape;
  SCOPED_TRACE(testing::Message() << shape.num_heads << " heads, " << shape.num_kv_heads
                                  << " of keys, of " << shape.head_dim << " and " << shape.value_dim
                                  << ", " << shape.rotary_dim << " turn, norm "
                                  << static_cast<int>(shape.norm));
  constexpr int kBlocks = 3;
  const int64_t stride = c.qkv_dim() + c.extra_stride;
  const int64_t block_elements = 64 * (c.key_dim() + c.value_dim());
  const int half = shape.rotary_dim / 2;
  std::vector<float> qkv = Floats(static_cast<size_t>(c.num_rows * stride), 6);
  const std::vector<float> norms = Floats(static_cast<size_t>(c.query_dim() + c.key_dim() + 8), 7);
  std::vector<float> angles = Floats(static_cast<size_t>(10 * shape.rotary_dim + 1), 8);
  std::vector<int32_t> positions;
  std::vector<int32_t> angle_rows;
  std::vector<int32_t> row_blocks;
  for (int i = 0; i < c.num_rows; ++i) {
    positions.push_back(62 + i + 64 * i);
    angle_rows.push_back((7 * i + 2) % 10);
    row_blocks.push_back((i + 1) % kBlocks);
  }

  const DeviceArray<float> device_qkv(qkv);
  const DeviceArray<float> device_norms(norms);
  const DeviceArray<float> device_angles(angles);
  const DeviceArray<int32_t> device_positions(positions);
  const DeviceArray<int32_t> device_angle_rows(angle_rows);
  const DeviceArray<int32_t> device_row_blocks(row_blocks);
  const DeviceArray<Bf16> cache(static_cast<size_t>(kBlocks * block_elements + 1));
  std::vector<std::byte*> blocks;
  for (int i = 0; i < kBlocks; ++i) {
    blocks.push_back(reinterpret_cast<std::byte*>(cache.data() + i * block_elements));
  }
  const DeviceArray<std::byte*> kv_blocks(blocks);
  const int64_t query_stride = c.query_dim() + c.extra_stride;
  const DeviceArray<Bf16> queries(static_cast<size_t>(c.num_rows * query_stride + 1));
  QkvRows rows = {.shape = shape,
                  .num_rows = c.num_rows,
                  .qkv = device_qkv.data(),
                  .qkv_stride = stride,
                  .angles = device_angles.data(),
                  .angle_rows = device_angle_rows.data(),
                  .queries = queries.data(),
                  .query_stride = query_stride,
                  .positions = device_positions.data(),
                  .row_blocks = device_row_blocks.data(),
                  .kv_blocks = kv_blocks.data()};
  rows.shape.query_norm = device_norms.data();
  rows.shape.key_norm = device_norms.data() + (c.query_dim() + 7) / 8 * 8;
  PrepareQkv(rows, nullptr);
  const std::vector<Bf16> got_queries = queries.Host();
  const std::vector<Bf16> got_cache = cache.Host();

  // Keys and values left in their rows are what a cache would round, and queries the same.
  rows.kv_rows = const_cast<float*>(device_qkv.data()) + c.query_dim();
  rows.kv_row_stride = stride;
  rows.kv_blocks = nullptr;
  PrepareQkv(rows, nullptr);
  EXPECT_EQ(queries.Host(), got_queries);
  const std::vector<float> got_rows = device_qkv.Host();
  for (int row = 0; row < c.num_rows; ++row) {
    const Bf16* block = got_cache.data() + row_blocks[row] * block_elements;
    const int slot = positions[row] % 64;
    const float* keys = got_rows.data() + row * stride + c.query_dim();
    const float* values = keys + c.key_dim();
    for (int i = 0; i < c.key_dim(); ++i) {
      const int head = i / shape.head_dim;
      EXPECT_EQ(Bf16FromFloat(keys[i]),
                block[(head * 64 + slot) * shape.head_dim + i % shape.head_dim]);
    }
    for (int i = 0; i < c.value_dim(); ++i) {
      const int head = i / shape.value_dim;
      EXPECT_EQ(
          Bf16FromFloat(values[i]),
          block[64 * c.key_dim() + (head * 64 + slot) * shape.value_dim + i % shape.value_dim]);
    }
  }

  QkvShape on_host = shape;
  on_host.format = KvFormat::kF32;
  on_host.query_norm = norms.data();
  on_host.key_norm = norms.data() + (c.query_dim() + 7) / 8 * 8;
  for (int row = 0; row < c.num_rows; ++row) {
    float* x = qkv.data() + row * stride;
    std::vector<float> padded(
        static_cast<size_t>(shape.num_heads * PaddedHead(shape.head_dim) + 1));
    const float* angle = angles.data() + angle_rows[row] * shape.rotary_dim;
    reference::Kernels().prepare_qkv(on_host,
                                     {.qkv = x,
                                      .cosine = angle,
                                      .sine = angle + half,
                                      .queries = reinterpret_cast<std::byte*>(padded.data())});
    for (int i = 0; i < c.query_dim(); ++i) {
      ExpectNearBf16(x[i], got_queries[row * query_stride + i], "query", i);
    }
    const Bf16* block = got_cache.data() + row_blocks[row] * block_elements;
    const int slot = positions[row] % 64;
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      for (int i = 0; i < shape.head_dim; ++i) {
        ExpectNearBf16(x[c.query_dim() + head * shape.head_dim + i],
                       block[(head * 64 + slot) * shape.head_dim + i], "key", i);
      }
      for (int i = 0; i < shape.value_dim; ++i) {
        ExpectNearBf16(x[c.query_dim() + c.key_dim() + head * shape.value_dim + i],
                       block[64 * c.key_dim() + (head * 64 + slot) * shape.value_dim + i], "value",
                       i);
      }
    }
  }
}

TEST(CudaRows, PreparesQueriesKeysAndValuesAsTheReferenceDoes) {
  for (const QkNorm norm : {QkNorm::kNone, QkNorm::kPerHead, QkNorm::kWholeProjection}) {
    for (const float clip : {0.0f, 0.8f}) {
      const auto shape = [&](int heads, int kv_heads, int head_dim, int value_dim, int rotary) {
        return QkvShape{.num_heads = heads,
                        .num_kv_heads = kv_heads,
                        .head_dim = head_dim,
                        .value_dim = value_dim,
                        .rotary_dim = rotary,
                        .norm = norm,
                        .epsilon = 1e-5f,
                        .clip = clip};
      };
      ExpectPrepared({.shape = shape(32, 4, 128, 128, 128)});
      ExpectPrepared({.shape = shape(5, 5, 64, 64, 64), .extra_stride = 64});
      ExpectPrepared({.shape = shape(3, 1, 80, 80, 32), .extra_stride = 2});
      ExpectPrepared({.shape = shape(7, 1, 72, 40, 0), .extra_stride = 1});
      ExpectPrepared({.shape = shape(2, 2, 24, 16, 6)});
      ExpectPrepared({.shape = shape(3, 1, 13, 7, 10)});
      ExpectPrepared({.shape = shape(1, 1, 576, 0, 64)});
      ExpectPrepared({.shape = shape(4, 0, 192, 0, 64)});
      ExpectPrepared({.shape = shape(0, 2, 128, 128, 128)});
    }
  }
}

TEST(CudaRows, ValuesThatAreNotNumbersStaySoBeyondTheClip) {
  const std::vector<float> qkv = {kNan, 9, -9, 1, kNan, 9, -9, 1, kNan, 9, -9, 1};
  const DeviceArray<float> device_qkv(qkv);
  const DeviceArray<Bf16> cache(size_t{2 * 64 * 4});
  const DeviceArray<std::byte*> blocks(
      std::vector<std::byte*>{reinterpret_cast<std::byte*>(cache.data())});
  const DeviceArray<int32_t> zeros(size_t{1});
  const DeviceArray<Bf16> queries(size_t{4});
  PrepareQkv(
      {.shape = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 4, .value_dim = 4, .clip = 2},
       .num_rows = 1,
       .qkv = device_qkv.data(),
       .qkv_stride = 12,
       .queries = queries.data(),
       .query_stride = 4,
       .positions = zeros.data(),
       .row_blocks = zeros.data(),
       .kv_blocks = blocks.data()},
      nullptr);
  const std::vector<Bf16> got = queries.Host();
  EXPECT_TRUE(std::isnan(FloatFromBf16(got[0])));
  EXPECT_EQ(FloatFromBf16(got[1]), 2);
  EXPECT_EQ(FloatFromBf16(got[2]), -2);
  EXPECT_EQ(FloatFromBf16(got[3]), 1);
  EXPECT_TRUE(std::isnan(FloatFromBf16(cache.Host()[64 * 4])));
}

TEST(CudaRows, StoresKeysAndValuesAsTheyAre) {
  const QkvShape shape = {.num_heads = 9,
                          .num_kv_heads = 3,
                          .head_dim = 16,
                          .value_dim = 24,
                          .rotary_dim = 16,
                          .norm = QkNorm::kPerHead,
                          .clip = 0.1f};
  const int64_t kv_dim = 3 * (16 + 24);
  const std::vector<float> kv = Floats(static_cast<size_t>(2 * kv_dim), 9);
  const DeviceArray<float> device_kv(kv);
  const DeviceArray<Bf16> cache(static_cast<size_t>(64 * kv_dim));
  const DeviceArray<std::byte*> blocks(
      std::vector<std::byte*>{reinterpret_cast<std::byte*>(cache.data())});
  const DeviceArray<int32_t> positions(std::vector<int32_t>{5, 6});
  const DeviceArray<int32_t> row_blocks(std::vector<int32_t>{0, 0});
  StoreKv({.shape = shape,
           .num_rows = 2,
           .qkv = device_kv.data(),
           .qkv_stride = kv_dim,
           .positions = positions.data(),
           .row_blocks = row_blocks.data(),
           .kv_blocks = blocks.data()},
          nullptr);
  const std::vector<Bf16> got = cache.Host();
  for (int row = 0; row < 2; ++row) {
    for (int head = 0; head < 3; ++head) {
      for (int i = 0; i < 16; ++i) {
        EXPECT_EQ(got[(head * 64 + 5 + row) * 16 + i],
                  Bf16FromFloat(kv[row * kv_dim + head * 16 + i]));
      }
      for (int i = 0; i < 24; ++i) {
        EXPECT_EQ(got[64 * 48 + (head * 64 + 5 + row) * 24 + i],
                  Bf16FromFloat(kv[row * kv_dim + 48 + head * 24 + i]));
      }
    }
  }
}

TEST(CudaRows, CopiesRowsFromWhereTheyAre) {
  for (const int64_t bytes : {16, 48, 4096, 4112}) {
    const int64_t quads = bytes / 16;
    constexpr int kRows = 40;
    std::vector<uint32_t> x(static_cast<size_t>(4 * (quads + 1) * 2 * kRows));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint32_t>(i);
    std::vector<int32_t> from(kRows);
    for (int i = 0; i < kRows; ++i) from[i] = i < 3 ? i : 2 * i - 3;
    const DeviceArray<uint32_t> device_x(x);
    const DeviceArray<int32_t> device_from(from);
    const DeviceArray<uint32_t> out(static_cast<size_t>(4 * quads * kRows));
    const int64_t x_stride = bytes + 16;
    const auto expect = [&](const std::vector<uint32_t>& got, int64_t stride, bool gathered) {
      for (int row = 0; row < kRows; ++row) {
        const int64_t source = gathered ? from[row] : row;
        for (int64_t i = 0; i < bytes / 4; ++i) {
          ASSERT_EQ(got[row * stride / 4 + i], x[source * x_stride / 4 + i]);
        }
      }
    };
    CopyRows rows = {.x = device_x.data(),
                     .x_stride = x_stride,
                     .from = device_from.data(),
                     .num_rows = kRows,
                     .bytes = bytes,
                     .out = out.data(),
                     .out_stride = bytes};
    Copy(rows, nullptr);
    expect(out.Host(), bytes, true);
    rows.from = nullptr;
    Copy(rows, nullptr);
    expect(out.Host(), bytes, false);
    rows.from = device_from.data();  // closing the gaps in place
    rows.out = device_x.data();
    rows.out_stride = x_stride;
    Copy(rows, nullptr);
    expect(device_x.Host(), x_stride, true);
  }
}

TEST(CudaRows, TellsOfNumbersThatAreNotFinite) {
  for (const int size : {5, 4096, 9001}) {
    const int64_t stride = size + 3;
    for (const float bad : {0.0f, kNan, -std::numeric_limits<float>::infinity()}) {
      for (const int64_t at : {int64_t{0}, stride + size - 1, stride + size}) {
        std::vector<float> x(static_cast<size_t>(2 * stride), 3e38f);
        x[at] = bad;
        const DeviceArray<float> device_x(x);
        const DeviceArray<int32_t> flag(std::vector<int32_t>{1});
        LookForNotFinite(device_x.data(), stride, 2, size, flag.data(), nullptr);
        const bool in_rows = at < stride + size;
        EXPECT_EQ(flag.Host()[0], bad == 0 || !in_rows ? 1 : 0) << at;
      }
    }
  }
}

TEST(CudaRows, RandomWeightsAreAsWideAsTheyAreToBe) {
  constexpr int64_t kCount = 30001;
  const DeviceArray<Bf16> array(size_t{kCount + 1});
  FillRandom(array.data(), kCount, 5, 0.5f, nullptr);
  const std::vector<Bf16> first = array.Host();
  double sum = 0;
  double squares = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double value = FloatFromBf16(first[i]);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(squares / kCount, 0.25, 0.01);
  EXPECT_EQ(first[kCount], 0);
  FillRandom(array.data(), kCount, 6, 0.5f, nullptr);
  EXPECT_NE(array.Host(), first);
}

int32_t LargestOfRow(const std::vector<float>& row, int shift = 0) {
  std::vector<float> shifted(static_cast<size_t>(shift), 1e30f);
  shifted.insert(shifted.end(), row.begin(), row.end());
  const DeviceArray<float> x(shifted);
  const DeviceArray<unsigned long long> keys(std::vector<unsigned long long>(1, 0));
  FindLargest({.x = x.data() + shift,
               .stride = static_cast<int64_t>(row.size()),
               .num_rows = 1,
               .size = static_cast<int>(row.size()),
               .keys = keys.data()},
              nullptr);
  return LargestOf(keys.Host()[0]);
}

TEST(CudaRows, FindsTheLargestElementOfARow) {
  for (const int size : {1, 2, 31, 100, 1000, 8192, 8193, 50000}) {
    for (const int shift : {0, 1}) {
      std::vector<float> row = Floats(static_cast<size_t>(size), static_cast<uint32_t>(size));
      const auto best = static_cast<size_t>(size * 2 / 3);
      row[best] = 100;
      EXPECT_EQ(LargestOfRow(row, shift), best);
      row[static_cast<size_t>(size - 1)] = 100;
      EXPECT_EQ(LargestOfRow(row, shift), best) << "the first of equal ones";
      for (float& value : row) value = -std::abs(value) - 1;
      row[best] = -0.5f;
      EXPECT_EQ(LargestOfRow(row, shift), best) << "of negative ones";
    }
  }
  EXPECT_EQ(LargestOfRow({-1, -0.0f, 0.0f, -2}), 1) << "zeros are equal";
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float odd : {kInfinity, -kInfinity, std::nanf("")}) {
    std::vector<float> row = Floats(9000, 5);
    row[8999] = odd;
    EXPECT_LT(LargestOfRow(row), 0);
    row[8999] = 0;
    row[3] = odd;
    EXPECT_LT(LargestOfRow(row), 0);
  }
}

TEST(CudaRows, FindsTheLargestOfEachRow) {
  constexpr int kRows = 70;
  constexpr int kSize = 300;
  constexpr int kStride = 304;
  const std::vector<float> x = Floats(size_t{kRows} * kStride, 6);
  const DeviceArray<float> device_x(x);
  const DeviceArray<unsigned long long> keys(std::vector<unsigned long long>(kRows, 0));
  FindLargest({.x = device_x.data(),
               .stride = kStride,
               .num_rows = kRows,
               .size = kSize,
               .keys = keys.data()},
              nullptr);
  const std::vector<unsigned long long> host = keys.Host();
  for (int row = 0; row < kRows; ++row) {
    const auto begin = x.begin() + row * kStride;
    EXPECT_EQ(LargestOf(host[row]), std::max_element(begin, begin + kSize) - begin);
  }
}

TEST(CudaRows, WithoutRowsNothingIsDone) {
  Embed({}, nullptr);
  Normalize({}, nullptr);
  PrepareQkv({}, nullptr);
  StoreKv({}, nullptr);
  Copy({}, nullptr);
  LookForNotFinite(nullptr, 0, 0, 8, nullptr, nullptr);
  Unpack({}, nullptr);
  FillRandom(nullptr, 0, 1, 1, nullptr);
  Synchronize();
}

}  // namespace
}  // namespace convene::kernels::cuda
