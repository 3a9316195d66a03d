// Which way of asking memory for panels is taken for which format and number of rows
// (panel_streaming.h): by the kind of CPU, or as `convene measure` found it
// (measure_streaming.h). What was found on which CPU, and why: docs/results/few_rows.md.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hardware/isa.h"
#include "kernels/packed_matrix.h"
#include "kernels/panel_streaming.h"

namespace convene::kernels {

// What is worth trying. The first was found on a Xeon, where the fourth is faster since threads can
// have panels of their own; the second to the fourth on Zen 4, whose own prefetchers follow a long
// run by themselves, and drop what software asks of them or are held up by it; the last two on
// Zen 3, one stream of which gets five sixths of what the memory gives. Which of them differ for a
// product, KernelSet::acting tells.
inline constexpr std::array<PanelStreaming, 6> kStreamingWays = {{
    {},
    {.ahead_bytes = 0, .fetches_next = false, .half_lines = true, .own_shares = true},
    {.ahead_bytes = 0, .fetches_next = false, .half_lines = false, .own_shares = true},
    {.ahead_bytes = 8192, .fetches_next = true, .half_lines = false, .own_shares = true},
    {.ahead_bytes = 0, .fetches_next = false, .own_shares = true, .streams = 4, .piece_bytes = 512},
    {.ahead_bytes = 0,
     .fetches_next = false,
     .own_shares = true,
     .streams = 2,
     .piece_bytes = 1024},
}};

// Each number of rows stands for those up to the next.
inline constexpr std::array<int, 6> kStreamingRows = {1, 2, 4, 8, 16, 32};
inline constexpr std::array kStreamingFormats = {WeightFormat::kF32, WeightFormat::kBf16,
                                                 WeightFormat::kInt8, WeightFormat::kInt4};
static_assert(
    [] {
      for (size_t i = 0; i < kStreamingFormats.size(); ++i) {
        if (static_cast<size_t>(kStreamingFormats[i]) != i) return false;
      }
      return kStreamingFormats.back() == WeightFormat::kInt4;  // the last one there is
    }(),
    "choices are kept by WeightFormat");

// "one panel after the other, 8192 bytes ahead, the next one fetched".
std::string Describe(const PanelStreaming& way);

struct CpuKind {
  bool is_amd = false;
  int family = 0;  // as CPUID tells it
  // Whose kernels it runs, which may be of fewer instructions than it has.
  hardware::Isa isa = hardware::Isa::kReference;
};

class StreamingChoice {
 public:
  // The same way for everything.
  explicit StreamingChoice(const PanelStreaming& way);
  // What was best where a CPU of that kind was measured, or else the one that is most like it.
  static StreamingChoice OfCpu(const CpuKind& cpu);
  // Of this CPU, with the kernels that this process chose.
  static StreamingChoice OfCpu();
  // What `numbers` gave. Unset: they are of another number of formats or rows, or of another list
  // of ways.
  static std::optional<StreamingChoice> FromNumbers(std::span<const int> numbers);
  // Of each way in kStreamingWays (CHECKed), by format, then by rows: kNumberOfFirstWay and on.
  std::vector<int> numbers() const;
  // Another one for each list of ways, so that a choice that is kept is never taken for one among
  // others. A list of seven ways began with 0.
  static constexpr int kNumberOfFirstWay = 10;

  // Of a product with so many rows of each matrix, at most.
  const PanelStreaming& For(WeightFormat format, int rows) const;
  // For kStreamingRows[rows_idx] and those up to the next.
  void Set(WeightFormat format, size_t rows_idx, const PanelStreaming& way);

 private:
  using ByRows = std::array<PanelStreaming, kStreamingRows.size()>;
  std::array<ByRows, kStreamingFormats.size()> ways_;  // by WeightFormat
};

}  // namespace convene::kernels
