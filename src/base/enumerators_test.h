// All enumerators of an enum class, for tests of every kind that there is: a list kept by hand
// misses the next one. Not for enums whose values are chosen.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace convene {

// Whether the value has a name: compilers write one that has none as a cast, "(Format)4".
template <auto kValue>
consteval bool IsEnumerator() {
  const std::string_view function = __PRETTY_FUNCTION__;
  for (size_t i = 0; i + 1 < function.size(); ++i) {
    if (function[i] == ')' && function[i + 1] >= '0' && function[i + 1] <= '9') return false;
  }
  return true;
}

template <typename E, int kCount = 0>
consteval int NumEnumerators() {
  if constexpr (IsEnumerator<static_cast<E>(kCount)>()) {
    return NumEnumerators<E, kCount + 1>();
  } else {
    return kCount;
  }
}

// In their order, from 0 on.
template <typename E>
inline constexpr auto kEvery = [] {
  std::array<E, NumEnumerators<E>()> all;
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<E>(i);
  return all;
}();

}  // namespace convene
