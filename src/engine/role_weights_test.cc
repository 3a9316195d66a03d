#include "engine/role_weights.h"

#include <gtest/gtest.h>

namespace convene::engine {
namespace {

TEST(RoleWeights, AreSaidOnceWhereRanksHoldTheSame) {
  EXPECT_EQ(Words({{.role = "attention", .ranks = {0}, .bytes = {3 << 20}},
                   {.role = "experts", .ranks = {1, 2}, .bytes = {6 << 20, 6 << 20}}}),
            "3.00 MiB on rank 0 (attention), 6.00 MiB on each of ranks 1, 2 (experts)");
  EXPECT_EQ(Words({{.role = "experts", .ranks = {1, 2}, .bytes = {9 << 20, 3 << 20}}}),
            "3.00 MiB to 9.00 MiB on each of ranks 1, 2 (experts)");
  EXPECT_EQ(Words({}), "");
}

}  // namespace
}  // namespace convene::engine
