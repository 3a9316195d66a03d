// The machine's peaks at this moment, measured beside the figure that is divided by them: machines
// drift with heat and with their neighbours. What is kept between runs is hardware/profile.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "engine/loaded_model.h"
#include "hardware/isa.h"
#include "hardware/profile.h"
#include "kernels/measure_peaks.h"

namespace convene::evaluate {

struct Peaks {
  double flops_per_s = 0;  // dot products in the format that the model computes in
  double bytes_per_s = 0;  // memory read
};

class PeakMeter {
 public:
  // Reads the model's own weights where they are far larger than the caches, otherwise memory that
  // is given back after each measurement. Keeps a reference to the model.
  PeakMeter(engine::LoadedModel& model, hardware::Isa isa, uint64_t last_level_cache_bytes);
  // Of a GPU that computes: what was measured of it before the model took its memory.
  PeakMeter(engine::LoadedModel& model, const hardware::GpuProfile& gpu);

  // Medians, half a second in all; of a GPU always the same, at once. Error: no memory to measure
  // with.
  Result<Peaks> Measure();

  // The medians of all that Measure gave so far.
  Peaks typical() const;

 private:
  engine::LoadedModel& model_;
  hardware::Isa isa_ = {};
  uint64_t last_level_cache_bytes_ = 0;
  std::optional<Peaks> of_gpu_ = {};
  std::vector<double> flops_per_s_;
  std::vector<double> bytes_per_s_;
};

}  // namespace convene::evaluate
