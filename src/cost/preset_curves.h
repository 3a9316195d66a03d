// Curves of measured operators that presets are delivered with: few points of published tables, as
// models that cost/operator_model.h reads. Which table each is from, it says itself.
#pragma once

#include <span>
#include <string_view>

namespace convene::cost {

struct PresetCurve {
  std::string_view gpu;   // as GpuPreset::key
  std::string_view json;  // of an OperatorModel
};

// Written by tools/make_preset_curves.py.
std::span<const PresetCurve> PresetCurves();

}  // namespace convene::cost
