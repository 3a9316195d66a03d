#include "device/cpu/rotary_angles.h"

#include <algorithm>
#include <cmath>

namespace convene::device {

void RotaryAngles::Compute(const StepRows& rows, hardware::ThreadPool& pool) {
  frequencies_.clear();
  if (spec_.rope.DependsOnLength()) frequencies_of_length_.clear();
  for (int row = 0; row < rows.num_rows(); ++row) {
    const int prompt_length = rows.step()[rows.sequence(row)].prompt_length;
    frequencies_.push_back(Frequencies(std::max(prompt_length, rows.position(row) + 1)).data());
  }
  const int half = half_rotary_dim();
  const auto factor = static_cast<float>(spec_.rope.attention_factor);
  cosine_.resize(size_t(rows.num_rows()) * half);
  sine_.resize(size_t(rows.num_rows()) * half);
  pool.ParallelFor(
      rows.num_rows(),
      [&](int64_t row, int) {
        for (int i = 0; i < half; ++i) {
          // The product is rounded to float as in the reference implementations.
          const float angle = static_cast<float>(rows.position(row)) * frequencies_[row][i];
          cosine_[row * half + i] = static_cast<float>(std::cos(double{angle})) * factor;
          sine_[row * half + i] = static_cast<float>(std::sin(double{angle})) * factor;
        }
      },
      8);
}

const std::vector<float>& RotaryAngles::Frequencies(int length) {
  const int key = spec_.rope.DependsOnLength() ? length : 0;
  const auto found = frequencies_of_length_.find(key);
  if (found != frequencies_of_length_.end()) return found->second;
  return frequencies_of_length_.emplace(key, model::InverseFrequencies(spec_.rope, length))
      .first->second;
}

}  // namespace convene::device
