// What stands between the matrices of an expert, in every kernel set against the reference and in
// the reference against its formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include "hardware/thread_pool.h"
#include "kernels/kernels_test.h"
#include "kernels/streaming_choice.h"

namespace convene::kernels {
namespace {

class EpilogueTest : public KernelsTest {};

INSTANTIATE_TEST_SUITE_P(EverySet, EpilogueTest, EverySet(), NameOfSet);

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

TEST_P(EpilogueTest, GateAndUpAreMultipliedThroughSiluOrClampedSwiglu) {
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

TEST_P(EpilogueTest, ReluIsOneMatrixWithoutAGate) {
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

// A limit or a rectifier that lost NaN would make numbers of it.
TEST_P(EpilogueTest, KeepsWhatIsNotANumber) {
  constexpr int kIntermediate = 40;
  constexpr int kCols = 64;
  for (const Formats& formats : kFormats) {
    std::vector<float> x = RandomFloats(2 * kCols, 3);
    x[5] = std::nanf("");
    const Rows rows = MakeRows(formats.activations, x, 2, kCols);
    const std::vector<float> weights = RandomFloats(size_t{kIntermediate} * kCols, 1);
    for (const Epilogue epilogue :
         {Epilogue::kSiluMul, Epilogue::kClampedSwiglu, Epilogue::kRelu}) {
      const Packed packed = epilogue == Epilogue::kRelu
                                ? Pack(formats, weights, kIntermediate, kCols)
                                : PackGateUp(formats, weights, weights, kIntermediate, kCols);
      const auto out =
          RunActivation(kernels(), formats, packed, rows, 2, kIntermediate, epilogue, nullptr);
      const int64_t stride = ActivationRowBytes(formats.wide(), kIntermediate);
      for (int i = 0; i < kIntermediate; ++i) {
        EXPECT_TRUE(std::isnan(reference::LoadActivation(formats.wide(), out.data(), i))) << i;
        EXPECT_TRUE(
            std::isfinite(reference::LoadActivation(formats.wide(), out.data() + stride, i)));
      }
    }
  }
}

// What a way of reading panels makes of a thread's 25 panels, the last of which is not whole: where
// threads have panels of their own, a quarter of what is left is taken at once.
TEST_P(EpilogueTest, SeveralPanelsOfAThreadGiveTheSameActivationsAsOneByOne) {
  if (&kernels() == &reference::Kernels()) GTEST_SKIP() << "it knows no ways, and takes seconds";
  constexpr int kPanels = 24;
  constexpr int kCols = 150;
  looked_at = &kernels();
  for (const Formats& formats : kFormats) {
    for (const Epilogue epilogue :
         {Epilogue::kSiluMul, Epilogue::kClampedSwiglu, Epilogue::kRelu}) {
      const int width = (IsGated(epilogue) ? kPanelRows / 2 : kPanelRows) * kPanels + 10;
      const std::vector<float> values = RandomFloats(size_t(width) * kCols, 1);
      const Packed packed = IsGated(epilogue) ? PackGateUp(formats, values, values, width, kCols)
                                              : Pack(formats, values, width, kCols);
      std::vector<float> bias = RandomFloats(packed.matrix.rows, 4);
      for (const int tokens : {1, 2, 4, 6, 9}) {
        const Rows rows =
            MakeRows(formats.activations, RandomFloats(size_t(tokens) * kCols, 3), tokens, kCols);
        for (const float* given : std::initializer_list<const float*>{nullptr, bias.data()}) {
          const auto run = [&](const PanelStreaming& way) {
            const StreamingChoice choice(way);
            KernelSet set = kernels();
            set.gemm = LookAtPanels;
            set.streaming = &choice;
            most_panels_at_once = 0;
            return RunActivation(set, formats, packed, rows, tokens, width, epilogue, given);
          };
          PanelStreaming one_by_one;
          one_by_one.own_shares = false;
          const std::vector<std::byte> expected = run(one_by_one);
          ASSERT_EQ(most_panels_at_once, 1);
          for (const PanelStreaming& way : kStreamingWays) {
            ASSERT_TRUE(run(way) == expected)
                << formats.Describe() << ", epilogue " << static_cast<int>(epilogue) << ", "
                << tokens << " rows, bias " << (given != nullptr) << ", " << way.streams
                << " streams, " << way.ahead_bytes << " ahead";
            if (way.own_shares) {
              ASSERT_GT(most_panels_at_once, 4);
            }
          }
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

}  // namespace
}  // namespace convene::kernels
