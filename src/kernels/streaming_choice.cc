#include "kernels/streaming_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace convene::kernels {
namespace {

constexpr size_t kNumNumbers = kStreamingFormats.size() * kStreamingRows.size();

// By kStreamingRows (docs/results/few_rows.md).
struct Ways {
  std::array<int, kStreamingRows.size()> floats, int8, int4;
};
constexpr Ways kOnXeon = {
    .floats = {3, 3, 3, 3, 3, 3}, .int8 = {3, 3, 3, 3, 3, 3}, .int4 = {3, 3, 3, 3, 3, 3}};
// One row of floats loses by panels of a thread's own.
constexpr Ways kOnXeonOfAvx2 = {
    .floats = {0, 3, 3, 3, 3, 3}, .int8 = kOnXeon.int8, .int4 = kOnXeon.int4};
constexpr Ways kOnZen4 = {
    .floats = {1, 1, 1, 1, 3, 3}, .int8 = {1, 1, 2, 1, 3, 3}, .int4 = {2, 2, 3, 3, 3, 3}};
constexpr Ways kOnZen5 = {
    .floats = {1, 1, 1, 3, 3, 3}, .int8 = {2, 2, 2, 2, 3, 3}, .int4 = {3, 3, 3, 3, 3, 3}};
constexpr Ways kOnZen5OfAvx2 = {
    .floats = {2, 3, 3, 3, 3, 3}, .int8 = {4, 4, 3, 3, 3, 3}, .int4 = {3, 3, 3, 3, 2, 2}};
constexpr Ways kOnZen3 = {
    .floats = {4, 4, 4, 3, 3, 3}, .int8 = {4, 4, 4, 3, 3, 3}, .int4 = {4, 4, 5, 2, 2, 2}};

// Other vendors' CPUs, none of which was met, take Intel's.
const Ways& WaysOf(const CpuKind& cpu) {
  const bool has_avx2_alone = cpu.isa <= hardware::Isa::kAvx2;
  if (!cpu.is_amd) return has_avx2_alone ? kOnXeonOfAvx2 : kOnXeon;
  if (cpu.family >= hardware::kFamilyOfZen5) return has_avx2_alone ? kOnZen5OfAvx2 : kOnZen5;
  // A Zen 4 that is told to use AVX2 takes what is best for these kernels on Zen 3: the family is
  // the same, and nobody measured it.
  return has_avx2_alone ? kOnZen3 : kOnZen4;
}

}  // namespace

std::string Describe(const PanelStreaming& way) {
  std::string text =
      way.streams > 1 ? fmt::format("{} panels in turn by {} bytes", way.streams, way.piece_bytes)
                      : "one panel after the other";
  if (way.ahead_bytes > 0) text += fmt::format(", {} bytes ahead", way.ahead_bytes);
  if (way.fetches_next) text += ", the next one fetched";
  if (way.ahead_bytes == 0 && !way.fetches_next) text += ", nothing fetched";
  if (way.half_lines) text += ", half lines";
  return text + (way.own_shares ? "" : ", threads in turn");
}

StreamingChoice::StreamingChoice(const PanelStreaming& way) {
  for (ByRows& by_rows : ways_) by_rows.fill(way);
}

StreamingChoice StreamingChoice::OfCpu(const CpuKind& cpu) {
  const Ways& ways = WaysOf(cpu);
  StreamingChoice choice(kStreamingWays[0]);
  for (const WeightFormat format : kStreamingFormats) {
    const auto& of_format = format == WeightFormat::kInt4   ? ways.int4
                            : format == WeightFormat::kInt8 ? ways.int8
                                                            : ways.floats;
    for (size_t rows_idx = 0; rows_idx < of_format.size(); ++rows_idx) {
      choice.Set(format, rows_idx, kStreamingWays[static_cast<size_t>(of_format[rows_idx])]);
    }
  }
  return choice;
}

StreamingChoice StreamingChoice::OfCpu() {
  return OfCpu({.is_amd = hardware::CpuIsAmd(),
                .family = hardware::CpuFamily(),
                .isa = hardware::IsaOfProcess()});
}

std::optional<StreamingChoice> StreamingChoice::FromNumbers(std::span<const int> numbers) {
  if (numbers.size() != kNumNumbers) return std::nullopt;
  StreamingChoice choice(kStreamingWays[0]);
  auto number = numbers.begin();
  for (ByRows& by_rows : choice.ways_) {
    for (PanelStreaming& way : by_rows) {
      const int64_t way_idx = int64_t{*number++} - kNumberOfFirstWay;
      if (way_idx < 0 || way_idx >= std::ssize(kStreamingWays)) return std::nullopt;
      way = kStreamingWays[static_cast<size_t>(way_idx)];
    }
  }
  return choice;
}

std::vector<int> StreamingChoice::numbers() const {
  std::vector<int> numbers;
  for (const ByRows& by_rows : ways_) {
    for (const PanelStreaming& way : by_rows) {
      const auto found = std::find(kStreamingWays.begin(), kStreamingWays.end(), way);
      CHECK(found != kStreamingWays.end(), "a way that has no number");
      numbers.push_back(kNumberOfFirstWay + static_cast<int>(found - kStreamingWays.begin()));
    }
  }
  return numbers;
}

const PanelStreaming& StreamingChoice::For(WeightFormat format, int rows) const {
  const auto above = std::upper_bound(kStreamingRows.begin() + 1, kStreamingRows.end(), rows);
  return ways_[static_cast<size_t>(format)]
              [static_cast<size_t>(above - kStreamingRows.begin()) - 1];
}

void StreamingChoice::Set(WeightFormat format, size_t rows_idx, const PanelStreaming& way) {
  ways_[static_cast<size_t>(format)][rows_idx] = way;
}

}  // namespace convene::kernels
