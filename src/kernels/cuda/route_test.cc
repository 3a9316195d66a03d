#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/cuda/device_memory_test.h"
#include "kernels/cuda/routing.h"
#include "kernels/packed_matrix.h"

namespace convene::kernels::cuda {
namespace {

std::vector<float> Floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct RouteCase {
  int num_rows = 1;
  int size = 256;
  int num_experts = 64;
  int top_k = 8;
  bool has_gate = false;  // of a shared expert: an output more
  bool has_groups = false;
  int extra_stride = 0;  // of the residual stream
};

// What a router leaves behind.
struct Routed {
  std::vector<Bf16> normed;
  std::vector<float> logits;
  std::vector<int32_t> experts;
  std::vector<float> weights;
  std::vector<int32_t> first_slot;
  std::vector<int32_t> slot_row;
  std::vector<int32_t> pair_slot;
  std::vector<Bf16> gathered;
  bool gathers = false;

  bool operator==(const Routed&) const = default;
};

// In one call, or by one operator after the other; twice, as counts must be what they were.
Routed RouteRowsOf(const RouteCase& c, bool at_once) {
  const int outputs = c.num_experts + (c.has_gate ? 1 : 0);
  const int64_t stride = c.size + c.extra_stride;
  const int padded = PaddedDepth(c.size);
  const auto pairs = static_cast<size_t>(c.num_rows * c.top_k);
  const DeviceArray<float> x(Floats(static_cast<size_t>(c.num_rows * stride), 1));
  const DeviceArray<float> norm_weight(Floats(static_cast<size_t>(c.size), 2));
  const DeviceArray<float> router_weights(Floats(static_cast<size_t>(outputs * c.size), 3));
  const DeviceArray<float> bias(Floats(static_cast<size_t>(outputs), 4));
  const DeviceArray<Bf16> normed(
      std::vector<Bf16>(static_cast<size_t>(c.num_rows * padded), 0x7fff));
  const DeviceArray<float> normed_float(static_cast<size_t>(c.num_rows * padded));
  const DeviceArray<float> logits(static_cast<size_t>(c.num_rows * (outputs + 3)));
  const DeviceArray<int32_t> experts(pairs);
  const DeviceArray<float> weights(pairs);
  const DeviceArray<int32_t> first_slot(static_cast<size_t>(c.num_experts + 1));
  const DeviceArray<int32_t> slot_row(pairs);
  const DeviceArray<int32_t> pair_slot(pairs);
  const DeviceArray<int32_t> scratch(
      static_cast<size_t>(GroupScratch(c.num_rows, c.num_experts, c.top_k)));
  const DeviceArray<Bf16> gathered(pairs * static_cast<size_t>(padded));
  const DeviceArray<int32_t> count(std::vector<int32_t>(1, 0));
  RouteRows rows{.norm = {.epsilon = 1e-6f,
                          .weight = norm_weight.data(),
                          .size = c.size,
                          .num_rows = c.num_rows,
                          .x = x.data(),
                          .x_stride = stride,
                          .out = normed.data(),
                          .out_stride = padded,
                          .out_float = normed_float.data(),
                          .out_float_stride = padded},
                 .router = {.weights = router_weights.data(),
                            .weight_stride = c.size,
                            .bias = bias.data(),
                            .num_outputs = outputs,
                            .size = c.size,
                            .x = normed_float.data(),
                            .x_stride = padded,
                            .num_rows = c.num_rows,
                            .logits = logits.data(),
                            .logits_stride = outputs + 3},
                 .select = {.router = {.num_experts = c.num_experts,
                                       .top_k = c.top_k,
                                       .norm = RouterNorm::kSum},
                            .logits = logits.data(),
                            .logits_stride = outputs + 3,
                            .num_rows = c.num_rows,
                            .experts = experts.data(),
                            .weights = weights.data()},
                 .group = {.experts = experts.data(),
                           .num_rows = c.num_rows,
                           .top_k = c.top_k,
                           .num_experts = c.num_experts,
                           .first_slot = first_slot.data(),
                           .slot_row = slot_row.data(),
                           .pair_slot = pair_slot.data(),
                           .scratch = scratch.data(),
                           .count = count.data()},
                 .gathered = gathered.data(),
                 .gathered_stride = padded,
                 .prefetched = router_weights.data(),
                 .prefetched_bytes = static_cast<int64_t>(router_weights.size() / 4 * 16)};
  if (c.has_groups) {
    rows.select.router.num_expert_groups = 8;
    rows.select.router.top_expert_groups = 4;
  }
  if (at_once) {
    for (int i = 0; i < 2; ++i) Route(rows, nullptr);
    EXPECT_EQ(count.Host()[0], 0);
  } else {
    Normalize(rows.norm, nullptr);
    RouterLogits(rows.router, nullptr);
    SelectExpertsOfRows(rows.select, nullptr);
    GroupByExpert(rows.group, nullptr);
  }
  const bool gathers = GathersRows(rows);
  if (!at_once || !gathers) {
    Copy({.x = normed.data(),
          .x_stride = padded * int64_t{sizeof(Bf16)},
          .from = slot_row.data(),
          .num_rows = static_cast<int>(pairs),
          .bytes = padded * int64_t{sizeof(Bf16)},
          .out = gathered.data(),
          .out_stride = padded * int64_t{sizeof(Bf16)}},
         nullptr);
  }
  return {normed.Host(),   logits.Host(),    experts.Host(),  weights.Host(), first_slot.Host(),
          slot_row.Host(), pair_slot.Host(), gathered.Host(), gathers};
}

void ExpectRoutedAlike(const RouteCase& c, bool gathers) {
  SCOPED_TRACE(testing::Message() << c.num_rows << " rows of " << c.size << ", " << c.top_k
                                  << " of " << c.num_experts);
  const Routed at_once = RouteRowsOf(c, /*at_once=*/true);
  EXPECT_EQ(at_once.gathers, gathers);
  EXPECT_TRUE(at_once == RouteRowsOf(c, /*at_once=*/false));
}

TEST(CudaRoute, IsNormLogitsChoiceAndSortBitByBit) {
  ExpectRoutedAlike({}, true);
  ExpectRoutedAlike({.num_rows = 3, .size = 1000, .num_experts = 60, .top_k = 4}, true);
  ExpectRoutedAlike({.num_rows = 8, .size = 2048, .num_experts = 128}, false);
  ExpectRoutedAlike({.num_rows = 4, .size = 2880, .num_experts = 32, .top_k = 4}, true);
  ExpectRoutedAlike({.num_rows = 2, .size = 4096, .num_experts = 8, .top_k = 2}, true);
  ExpectRoutedAlike({.num_rows = 1, .size = 8192, .num_experts = 16, .top_k = 4}, true);
  ExpectRoutedAlike({.num_rows = 2, .size = 1024, .num_experts = 256, .has_groups = true}, true);
  ExpectRoutedAlike({.num_rows = 2, .size = 512, .has_gate = true, .extra_stride = 4}, true);
}

TEST(CudaRoute, SoIsTheWayOfManyRowsAndOfThoseThatAreNotAligned) {
  ExpectRoutedAlike({.num_rows = 9, .size = 256}, false);
  ExpectRoutedAlike({.num_rows = 40, .size = 256}, false);
  ExpectRoutedAlike({.num_rows = 150, .size = 128, .num_experts = 128}, false);
  ExpectRoutedAlike({.num_rows = 2, .size = 258, .num_experts = 9, .top_k = 2}, false);
  ExpectRoutedAlike({.num_rows = 2, .size = 512, .extra_stride = 1}, false);
  ExpectRoutedAlike({.num_rows = 2, .size = 256, .num_experts = 512}, false);
  ExpectRoutedAlike({.num_rows = 1, .size = 12288, .num_experts = 16, .top_k = 4}, false);
}

TEST(CudaRoute, WithoutRowsNothingIsDone) {
  Route({}, nullptr);
  Synchronize();
}

}  // namespace
}  // namespace convene::kernels::cuda
