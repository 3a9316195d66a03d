#include "kernels/streaming_choice.h"

#include <algorithm>

#include "base/check.h"
#include "hardware/isa.h"

namespace convene::kernels {
namespace {

constexpr size_t kNumNumbers = kStreamingFormats.size() * kStreamingRows.size();

// By kStreamingRows (docs/results/few_rows.md).
struct Ways {
  std::array<int, kStreamingRows.size()> floats, int8, int4;
};
constexpr size_t kOnXeon = 3;  // for everything
constexpr Ways kOnZen4 = {
    .floats = {1, 1, 1, 1, 4, 3}, .int8 = {4, 4, 2, 1, 4, 3}, .int4 = {2, 1, 3, 3, 3, 3}};
constexpr Ways kOnZen5 = {
    .floats = {4, 4, 4, 4, 3, 3}, .int8 = {2, 2, 2, 2, 4, 4}, .int4 = {3, 3, 3, 3, 4, 4}};
constexpr Ways kOnZen3 = {
    .floats = {5, 5, 5, 3, 3, 3}, .int8 = {5, 5, 5, 3, 3, 3}, .int4 = {5, 5, 6, 2, 2, 2}};

}  // namespace

StreamingChoice::StreamingChoice(const PanelStreaming& way) {
  for (ByRows& by_rows : ways_) by_rows.fill(way);
}

StreamingChoice StreamingChoice::OfCpu() {
  if (!hardware::CpuIsAmd()) return StreamingChoice(kStreamingWays[kOnXeon]);
  const Ways& ways = hardware::IsaOfProcess() == hardware::Isa::kAvx2   ? kOnZen3
                     : hardware::CpuFamily() >= hardware::kFamilyOfZen5 ? kOnZen5
                                                                        : kOnZen4;
  std::vector<int> numbers;
  for (const WeightFormat format : kStreamingFormats) {
    const auto& of_format = format == WeightFormat::kInt4   ? ways.int4
                            : format == WeightFormat::kInt8 ? ways.int8
                                                            : ways.floats;
    numbers.insert(numbers.end(), of_format.begin(), of_format.end());
  }
  return *FromNumbers(numbers);
}

std::optional<StreamingChoice> StreamingChoice::FromNumbers(std::span<const int> numbers) {
  if (numbers.size() != kNumNumbers) return std::nullopt;
  StreamingChoice choice(kStreamingWays[0]);
  auto number = numbers.begin();
  for (ByRows& by_rows : choice.ways_) {
    for (PanelStreaming& way : by_rows) {
      if (*number < 0 || *number >= std::ssize(kStreamingWays)) return std::nullopt;
      way = kStreamingWays[static_cast<size_t>(*number++)];
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
      numbers.push_back(static_cast<int>(found - kStreamingWays.begin()));
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
