// Products of every kernel set against the reference, and the property that a row's result does not
// depend on which rows come with it.
#include "kernels/grouped_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "hardware/thread_pool.h"
#include "kernels/kernels_test.h"
#include "kernels/streaming_choice.h"

namespace convene::kernels {
namespace {

class GroupedGemmTest : public KernelsTest {};

INSTANTIATE_TEST_SUITE_P(EverySet, GroupedGemmTest, EverySet(), NameOfSet);

constexpr GemmShape kShapes[] = {{1, 64, 64},   {2, 16, 3},    {3, 52, 37},   {5, 150, 90},
                                 {6, 128, 32},  {7, 1, 5},     {13, 65, 130}, {64, 200, 256},
                                 {100, 31, 48}, {200, 97, 66}, {49, 640, 34}};

TEST_P(GroupedGemmTest, GemmEqualsTheReferenceForAwkwardShapesAndThreads) {
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

TEST_P(GroupedGemmTest, WholeNumbersGiveTheSameBitsOnEverySet) {
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

TEST_P(GroupedGemmTest, LargeOutputsAreTheSamePastTheCachesAndThroughThem) {
  if (&kernels() == &reference::Kernels()) GTEST_SKIP() << "it streams nothing and takes seconds";
  // Whole lines of a large output are streamed; where it does not begin at a line, none are.
  constexpr int kTokens = 600;
  constexpr int kRows = 64 * 29;
  constexpr int kCols = 70;
  static_assert(kTokens * kRows * 4 > (4 << 20));
  for (const Formats& formats : kFormats) {
    const Packed packed = Pack(formats, RandomFloats(size_t(kRows) * kCols, 5), kRows, kCols);
    const Rows rows =
        MakeRows(formats.activations, RandomFloats(size_t(kTokens) * kCols, 6), kTokens, kCols);
    const auto run = [&](size_t bytes_from_line) {
      hardware::ThreadPool pool({0, 0});
      std::vector<std::byte> memory(size_t(kTokens) * kRows * 4 + 128);
      std::byte* out = Align(memory) + bytes_from_line;
      const GemmGroup group{.weights = &packed.matrix, .num_rows = kTokens};
      RunGroupedGemm(kernels(), pool,
                     {.groups = {&group, 1},
                      .activations = formats.activations,
                      .rows = rows.storage.data(),
                      .row_stride = rows.stride,
                      .out = out,
                      .out_stride = int64_t{4} * kRows,
                      .scratch = Scratch()});
      return std::vector<std::byte>(out, out + size_t(kTokens) * kRows * 4);
    };
    EXPECT_TRUE(run(0) == run(4)) << formats.Describe();
  }
}

// What is worth trying, and what only a bench tries.
std::vector<PanelStreaming> WaysOfReading() {
  std::vector<PanelStreaming> ways(kStreamingWays.begin(), kStreamingWays.end());
  for (const int ahead_bytes : {1024, 2048, 5120}) {
    ways.push_back({.ahead_bytes = ahead_bytes, .fetches_next = false, .half_lines = true});
    ways.push_back({.ahead_bytes = ahead_bytes, .half_lines = true, .own_shares = true});
    ways.push_back({.ahead_bytes = ahead_bytes, .own_shares = true, .streams = 2});
  }
  return ways;
}

TEST_P(GroupedGemmTest, EveryWayOfReadingPanelsGivesTheSameBits) {
  // Panels deeper and less deep than what is fetched ahead, and a last one that is not whole.
  for (const GemmShape& shape :
       {GemmShape{1, 300, 70}, GemmShape{2, 64, 700}, GemmShape{4, 300, 700}, GemmShape{6, 64, 700},
        GemmShape{8, 300, 130}, GemmShape{17, 200, 700}, GemmShape{64, 100, 130}}) {
    for (const Formats& formats : kFormats) {
      const Packed packed =
          Pack(formats, RandomFloats(size_t(shape.rows) * shape.cols, 5), shape.rows, shape.cols);
      const Rows rows =
          MakeRows(formats.activations, RandomFloats(size_t(shape.tokens) * shape.cols, 6),
                   shape.tokens, shape.cols);
      const auto run = [&](const StreamingChoice* streaming) {
        KernelSet set = kernels();
        set.streaming = streaming;
        hardware::ThreadPool pool({0, 0});
        std::vector<float> out(size_t(shape.tokens) * shape.rows);
        // The same matrix twice, so that a run goes on into the next group.
        const GemmGroup groups[] = {{.weights = &packed.matrix, .num_rows = shape.tokens / 2},
                                    {.weights = &packed.matrix,
                                     .first_row = shape.tokens / 2,
                                     .num_rows = shape.tokens - shape.tokens / 2}};
        RunGroupedGemm(set, pool,
                       {.groups = groups,
                        .activations = formats.activations,
                        .rows = rows.storage.data(),
                        .row_stride = rows.stride,
                        .out = reinterpret_cast<std::byte*>(out.data()),
                        .out_stride = int64_t{4} * shape.rows,
                        .scratch = Scratch()});
        return out;
      };
      const std::vector<float> expected = run(nullptr);
      for (const PanelStreaming& way : WaysOfReading()) {
        const StreamingChoice choice(way);
        EXPECT_EQ(run(&choice), expected) << formats.Describe() << " " << shape.tokens << " rows, "
                                          << way.ahead_bytes << " ahead, shares " << way.own_shares;
      }
    }
  }
}

TEST_P(GroupedGemmTest, SeveralPanelsOfAThreadGiveTheSameBitsAsOneByOne) {
  if (&kernels() == &reference::Kernels()) GTEST_SKIP() << "it knows no ways, and takes seconds";
  // A quarter of what a thread has, 25 panels, is taken at once: six panels, read by up to four in
  // turn. Depths of several pieces; all numbers of rows that are read so, in the second group.
  constexpr int kRows = 64 * 24 + 10;
  constexpr int kCols = 300;
  const std::vector<float> values = RandomFloats(size_t(kRows) * kCols, 5);
  const std::vector<float> bias = RandomFloats(kRows, 7);
  looked_at = &kernels();
  for (const Formats& formats : kFormats) {
    const Packed packed = Pack(formats, values, kRows, kCols);
    for (int most_rows = 1; most_rows <= 6; ++most_rows) {
      const int fewer_rows = std::max(1, most_rows - 1);
      const int tokens = fewer_rows + most_rows;
      const Rows rows =
          MakeRows(formats.activations, RandomFloats(size_t(tokens) * kCols, 6), tokens, kCols);
      const float* given = most_rows % 2 == 0 ? bias.data() : nullptr;
      const GemmGroup groups[] = {
          {.weights = &packed.matrix, .num_rows = fewer_rows, .bias = given},
          {.weights = &packed.matrix,
           .first_row = fewer_rows,
           .num_rows = most_rows,
           .bias = given}};
      const auto run = [&](const PanelStreaming& way) {
        const StreamingChoice choice(way);
        KernelSet set = kernels();
        set.gemm = LookAtPanels;
        set.streaming = &choice;
        hardware::ThreadPool pool({0, 0});
        std::vector<float> out(size_t(tokens) * kRows);
        RunGroupedGemm(set, pool,
                       {.groups = groups,
                        .activations = formats.activations,
                        .rows = rows.storage.data(),
                        .row_stride = rows.stride,
                        .out = reinterpret_cast<std::byte*>(out.data()),
                        .out_stride = int64_t{4} * kRows,
                        .scratch = Scratch(),
                        .num_threads = most_rows == 3 ? 1 : 0});
        return out;
      };
      PanelStreaming one_by_one;
      one_by_one.own_shares = false;
      most_panels_at_once = 0;
      const std::vector<float> expected = run(one_by_one);
      EXPECT_EQ(most_panels_at_once, 1);
      for (const PanelStreaming& way : WaysOfReading()) {
        most_panels_at_once = 0;
        EXPECT_TRUE(run(way) == expected)
            << formats.Describe() << " " << most_rows << " rows, " << way.streams << " streams of "
            << way.piece_bytes << ", " << way.ahead_bytes << " ahead";
        if (way.own_shares) {
          EXPECT_GT(most_panels_at_once, 4);
        }
      }
    }
  }
}

TEST_P(GroupedGemmTest, TheLargestWholeNumbersDoNotOverflow) {
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

TEST_P(GroupedGemmTest, ManyGroupsAreAsEachAlone) {
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

}  // namespace
}  // namespace convene::kernels
