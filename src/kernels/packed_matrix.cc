#include "kernels/packed_matrix.h"

#include <array>

namespace convene::kernels {
namespace {

struct Named {
  WeightFormat format;
  std::string_view name;
};
constexpr std::array<Named, 4> kFormats = {{{WeightFormat::kF32, "f32"},
                                            {WeightFormat::kBf16, "bf16"},
                                            {WeightFormat::kInt8, "int8"},
                                            {WeightFormat::kInt4, "int4"}}};

}  // namespace

std::string_view Name(WeightFormat format) {
  for (const Named& named : kFormats) {
    if (named.format == format) return named.name;
  }
  return "?";
}

std::optional<WeightFormat> WeightFormatFromName(std::string_view name) {
  for (const Named& named : kFormats) {
    if (named.name == name) return named.format;
  }
  return std::nullopt;
}

}  // namespace convene::kernels
