// Cosines and sines that RoPE turns the rows of a frame by.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "device/step_rows.h"
#include "hardware/thread_pool.h"
#include "model/model_spec.h"

namespace convene::device {

class RotaryAngles {
 public:
  explicit RotaryAngles(const model::ModelSpec& spec) : spec_(spec) {}

  void Compute(const StepRows& rows, hardware::ThreadPool& pool);

  // (rotary_dim / 2) each
  const float* cosine(int64_t row) const { return cosine_.data() + row * half_rotary_dim(); }
  const float* sine(int64_t row) const { return sine_.data() + row * half_rotary_dim(); }

 private:
  int half_rotary_dim() const { return spec_.rope.rotary_dim / 2; }
  const std::vector<float>& Frequencies(int length);

  const model::ModelSpec& spec_;
  std::vector<const float*> frequencies_;  // per row
  std::map<int, std::vector<float>> frequencies_of_length_;
  std::vector<float> cosine_;
  std::vector<float> sine_;
};

}  // namespace convene::device
