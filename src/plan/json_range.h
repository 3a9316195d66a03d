// Whole numbers of a plan's file, which others wrote, and their ranges.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace convene::plan {

// Precondition: a whole number. One beyond int64_t is read as another; in errors it is shown as it
// is written (dump).
inline bool IsBetween(const nlohmann::json& number, int64_t min, int64_t max) {
  return number.get<int64_t>() >= min && number.get<int64_t>() <= max;
}

}  // namespace convene::plan
