#include "kernels/packed_matrix.h"

namespace convene::kernels {

std::string_view Name(WeightFormat format) { return format == WeightFormat::kF32 ? "f32" : "bf16"; }

std::optional<WeightFormat> WeightFormatFromName(std::string_view name) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    if (name == Name(format)) return format;
  }
  return std::nullopt;
}

}  // namespace convene::kernels
