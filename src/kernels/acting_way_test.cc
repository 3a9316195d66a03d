#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/avx2/kernels.h"
#include "kernels/cpu/avx512_bf16/kernels.h"
#include "kernels/kernels_test.h"
#include "kernels/streaming_choice.h"

namespace convene::kernels {

// kernels/cpu/trace_panels_test.h, which only sources for these instruction sets may include.
namespace avx2 {
uint64_t TraceGemm(const PanelGemm& gemm);
}
namespace avx512_bf16 {
uint64_t TraceGemm(const PanelGemm& gemm);
}

namespace {

// Not an array of a struct's members but every value of each, against every other.
std::vector<PanelStreaming> AllWaysOfReading() {
  std::vector<PanelStreaming> ways;
  for (const int ahead_bytes : {0, 512, 1024, 2048, 8192}) {
    for (const int streams : {1, 2, 4}) {
      for (const int piece_bytes : {512, 1024}) {
        for (const int flags : {0, 1, 2, 3, 4, 5, 6, 7}) {
          ways.push_back({.ahead_bytes = ahead_bytes,
                          .fetches_next = (flags & 1) != 0,
                          .half_lines = (flags & 2) != 0,
                          .own_shares = (flags & 4) != 0,
                          .streams = streams,
                          .piece_bytes = piece_bytes});
        }
      }
    }
  }
  return ways;
}

std::string NameOfWay(const PanelStreaming& way) {
  return fmt::format("{}, {} ahead, {} streams by {}", Describe(way), way.ahead_bytes, way.streams,
                     way.piece_bytes);
}

// Five panels of a thread's own, so that one is left over by two and by four; one panel otherwise.
void CompareTracesWithWhatActs(const KernelSet& kernels, uint64_t (*trace)(const PanelGemm&)) {
  constexpr int kPanels = 5;
  constexpr int kCols = 256;
  const std::vector<float> values = RandomFloats(size_t{kPanelRows} * kPanels * kCols, 1);
  for (const Formats& formats : kFormats) {
    const Packed packed = Pack(formats, values, kPanelRows * kPanels, kCols);
    const Packed behind = Pack(formats, values, kPanelRows, kCols);
    for (const int num_rows : {1, 3, 4, 5, 6, 7, 8, 9, 16, 17}) {
      const Rows rows = MakeRows(formats.activations, values, num_rows, kCols);
      std::vector<float> out(size_t{kPanelRows} * kPanels * static_cast<size_t>(num_rows));
      // By what acts; the order is of no matter.
      std::vector<std::pair<PanelStreaming, uint64_t>> seen;
      std::map<std::pair<bool, uint64_t>, std::string> acting_of;
      for (const PanelStreaming& way : AllWaysOfReading()) {
        const PanelStreaming acting =
            kernels.acting(way, formats.weights, formats.activations, num_rows);
        const uint64_t hash = trace({.weights = packed.matrix.panel(0),
                                     .num_panels = way.own_shares ? kPanels : 1,
                                     .activations = formats.activations,
                                     .rows = rows.storage.data(),
                                     .row_stride = rows.stride,
                                     .num_rows = num_rows,
                                     .columns = kPanelRows,
                                     .out = reinterpret_cast<std::byte*>(out.data()),
                                     .out_stride = int64_t{4} * kPanelRows * kPanels,
                                     .next = behind.matrix.data,
                                     .next_bytes = behind.matrix.panel(0).values_bytes(),
                                     .streaming = way,
                                     .scratch = Scratch()});
        EXPECT_EQ(acting.own_shares, way.own_shares);
        const auto same = std::find_if(seen.begin(), seen.end(),
                                       [&](const auto& one) { return one.first == acting; });
        const std::string what =
            fmt::format("{}, {} rows: {}", formats.Describe(), num_rows, NameOfWay(way));
        if (same != seen.end()) {
          ASSERT_EQ(same->second, hash) << what << ": something else of it acts, too";
          continue;
        }
        seen.emplace_back(acting, hash);
        const auto [other, is_new] =
            acting_of.emplace(std::pair(way.own_shares, hash), NameOfWay(acting));
        ASSERT_TRUE(is_new) << what << " does the same as " << other->second;
      }
    }
  }
}

bool IsSupported(const KernelSet& kernels) {
  return std::ranges::find(SupportedKernels(), &kernels) != SupportedKernels().end();
}

TEST(ActingWay, IsWhatTheKernelsOfAvx2Read) {
  if (!IsSupported(avx2::Kernels())) GTEST_SKIP() << "this machine has no AVX2";
  CompareTracesWithWhatActs(avx2::Kernels(), avx2::TraceGemm);
}

TEST(ActingWay, IsWhatTheKernelsOfAvx512Read) {
  if (!IsSupported(avx512_bf16::Kernels())) GTEST_SKIP() << "this machine has no AVX-512 BF16";
  CompareTracesWithWhatActs(avx512_bf16::Kernels(), avx512_bf16::TraceGemm);
}

}  // namespace
}  // namespace convene::kernels
