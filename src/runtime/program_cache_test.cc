#include "runtime/program_cache.h"

#include <gtest/gtest.h>

namespace convene::runtime {
namespace {

model::ModelSpec OneLayer() {
  model::ModelSpec spec;
  spec.vocab_size = 50;
  spec.hidden_size = 16;
  model::LayerSpec& layer = spec.layers.emplace_back();
  layer.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 4, .value_dim = 4};
  layer.moe.emplace();
  layer.moe->num_experts = 8;
  layer.moe->top_k = 2;
  layer.moe->intermediate_size = 8;
  return spec;
}

TEST(ProgramCache, HasProgramsOfEachPhasesRoles) {
  const model::ModelSpec spec = OneLayer();
  const strategy::Layout shares = {1, 2, 2, 1, {3, 1}};
  const strategy::Layout slices = {1, 2, 1, 2};
  ProgramCache cache(spec, {.step = {.roles = shares}, .decode_roles = slices, .rank = 1});
  const auto expected = [&](const strategy::Roles& roles) {
    return ToText(strategy::BuildStep(spec, {.roles = roles, .only_rank = 1}));
  };
  const Program& prefill = cache.Get({});
  const Program& decode = cache.Get({.phase = strategy::Phase::kDecode});
  EXPECT_EQ(ToText(*prefill.schedule), expected(shares));
  EXPECT_EQ(ToText(*decode.schedule), expected(slices));
  EXPECT_NE(expected(shares), expected(slices));
  EXPECT_EQ(&cache.Get({}), &prefill);
}

}  // namespace
}  // namespace convene::runtime
