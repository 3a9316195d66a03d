// The version of convene: CMakeLists.txt names the same one. What is measured and kept says by
// which version, since another one has other kernels.
#pragma once

#include <string_view>

namespace convene {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace convene
