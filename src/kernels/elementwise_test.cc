// What a step does to single rows, in every kernel set against the reference: it quantizes,
// normalizes and combines them.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/kernels_test.h"

namespace convene::kernels {
namespace {

class ElementwiseTest : public KernelsTest {};

INSTANTIATE_TEST_SUITE_P(EverySet, ElementwiseTest, EverySet(), NameOfSet);

TEST_P(ElementwiseTest, QuantizesAsTheReferenceBitForBit) {
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

// Otherwise a row with NaN would become a row of ordinary numbers.
TEST_P(ElementwiseTest, TheScaleOfARowThatIsNotFiniteIsNotFinite) {
  for (const int size : {1, 16, 37, 64, 2048}) {
    const auto bytes = static_cast<size_t>(ActivationRowBytes(ActivationFormat::kInt8, size));
    for (const float bad : {std::nanf(""), -std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      for (const int at : {0, size / 2, size - 1}) {
        std::vector<float> x = RandomFloats(size, 8);
        x[at] = bad;
        std::vector<std::byte> row(bytes);
        kernels().quantize(x.data(), size, row.data());
        EXPECT_FALSE(std::isfinite(RowEnd(row.data(), PaddedDepth(size))->scale))
            << bad << " at " << at << " of " << size;
        // What is not a number wins over infinity.
        x[(at + 1) % size] = HUGE_VALF;
        kernels().quantize(x.data(), size, row.data());
        EXPECT_EQ(std::isnan(RowEnd(row.data(), PaddedDepth(size))->scale),
                  std::isnan(bad) && size > 1);
      }
    }
  }
}

TEST_P(ElementwiseTest, NormalizesAsTheReference) {
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

TEST_P(ElementwiseTest, CombineFollowsTheMerges) {
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

}  // namespace
}  // namespace convene::kernels
