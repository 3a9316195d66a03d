#include "hardware/drop_from_caches.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace convene::hardware {
namespace {

// Whatever was in a cache alone is in memory then; an empty span, and one that begins and ends
// within a line, do no harm. That lines are gone only a time would tell, which no test asserts.
TEST(DropFromCaches, LosesNothing) {
  std::vector<uint32_t> values(100'003);
  std::iota(values.begin(), values.end(), 7);
  const auto bytes = std::as_bytes(std::span(values));
  DropFromCaches(bytes);
  DropFromCaches(bytes.subspan(5, 70));
  DropFromCaches({});
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], i + 7);
}

}  // namespace
}  // namespace convene::hardware
