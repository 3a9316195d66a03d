#include "kernels/cuda/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/device_memory_test.h"
#include "kernels/packed_matrix.h"
#include "kernels/reference/kernels.h"

namespace convene::kernels::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> Floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Rows of logits of a router, on the device.
struct LogitsCase {
  int num_outputs;
  int size;
  bool has_bias = true;
  int extra_stride = 0;
};

std::vector<float> Logits(const LogitsCase& c, int first_row, int num_rows,
                          const DeviceArray<float>& weights, const DeviceArray<float>& x,
                          const DeviceArray<float>& bias) {
  const int64_t stride = c.size + c.extra_stride;
  const DeviceArray<float> logits(
      std::vector<float>(static_cast<size_t>(num_rows * (c.num_outputs + 1)), -7.0f));
  RouterLogits({.weights = weights.data(),
                .weight_stride = stride,
                .bias = c.has_bias ? bias.data() : nullptr,
                .num_outputs = c.num_outputs,
                .size = c.size,
                .x = x.data() + first_row * stride,
                .x_stride = stride,
                .num_rows = num_rows,
                .logits = logits.data(),
                .logits_stride = c.num_outputs + 1},
               nullptr);
  return logits.Host();
}

void ExpectLogits(const LogitsCase& c, int num_rows, bool one_by_one) {
  SCOPED_TRACE(testing::Message() << num_rows << " rows, " << c.num_outputs << " outputs, size "
                                  << c.size);
  const int64_t stride = c.size + c.extra_stride;
  const std::vector<float> weights = Floats(static_cast<size_t>(c.num_outputs * stride), 1);
  const std::vector<float> x = Floats(static_cast<size_t>(num_rows * stride), 2);
  const std::vector<float> bias = Floats(static_cast<size_t>(c.num_outputs), 3);
  const DeviceArray<float> device_weights(weights);
  const DeviceArray<float> device_x(x);
  const DeviceArray<float> device_bias(bias);
  const std::vector<float> got = Logits(c, 0, num_rows, device_weights, device_x, device_bias);
  const int step = std::max(1, num_rows / 7);
  for (int row = 0; row < num_rows; row += step) {
    for (int output = 0; output < c.num_outputs; ++output) {
      double sum = c.has_bias ? bias[output] : 0;
      double magnitudes = 1;
      for (int i = 0; i < c.size; ++i) {
        const double product = double{x[row * stride + i]} * weights[output * stride + i];
        sum += product;
        magnitudes += std::abs(product);
      }
      ASSERT_NEAR(got[row * (c.num_outputs + 1) + output], sum, 1e-6 * magnitudes);
    }
    EXPECT_EQ(got[row * (c.num_outputs + 1) + c.num_outputs], -7.0f);
    if (!one_by_one) continue;
    const std::vector<float> alone = Logits(c, row, 1, device_weights, device_x, device_bias);
    for (int output = 0; output < c.num_outputs; ++output) {
      ASSERT_EQ(got[row * (c.num_outputs + 1) + output], alone[output]);
    }
  }
}

TEST(CudaRouting, LogitsAreProductsWhateverTheNumberOfRows) {
  for (const int rows : {1, 2, 5}) {
    ExpectLogits({128, 2048}, rows, rows > 1);
    ExpectLogits({1, 2048, false}, rows, true);
    ExpectLogits({60, 1028, true, 4}, rows, true);
    ExpectLogits({9, 333, true, 2}, rows, true);
    ExpectLogits({3, 4, false}, rows, true);
  }
}

TEST(CudaRouting, LogitsOfTilesAreThoseOfRowsAlone) {
  ExpectLogits({128, 256}, 384, true);
  ExpectLogits({50, 204}, 1000, true);
  ExpectLogits({200, 100, false, 4}, 250, true);
}

struct Grouped {
  std::vector<int32_t> experts;
  std::vector<float> weights;
  std::vector<int32_t> first_slot;
  std::vector<int32_t> slot_row;
  std::vector<int32_t> pair_slot;
  std::vector<int32_t> counts;
};

enum class How { kSelect, kFused };

Grouped Select(const Router& router, const std::vector<float>& logits, int64_t stride, int num_rows,
               How how) {
  const auto pairs = static_cast<size_t>(num_rows) * static_cast<size_t>(router.top_k);
  const auto num_experts = static_cast<size_t>(router.num_experts);
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<int32_t> experts(pairs);
  const DeviceArray<float> weights(pairs);
  DeviceArray<float> correction;
  SelectRows select = {.router = router,
                       .logits = device_logits.data(),
                       .logits_stride = stride,
                       .num_rows = num_rows,
                       .experts = experts.data(),
                       .weights = weights.data()};
  if (router.correction != nullptr) {
    correction =
        DeviceArray<float>(std::vector<float>(router.correction, router.correction + num_experts));
    select.router.correction = correction.data();
  }
  const DeviceArray<int32_t> first_slot(num_experts + 1);
  const DeviceArray<int32_t> slot_row(pairs);
  const DeviceArray<int32_t> pair_slot(pairs);
  const DeviceArray<int32_t> scratch(
      static_cast<size_t>(GroupScratch(num_rows, router.num_experts, router.top_k)));
  const DeviceArray<int32_t> counts(std::vector<int32_t>(num_experts, 100));
  const DeviceArray<int32_t> done(std::vector<int32_t>(1, 0));
  if (how == How::kFused) {
    SelectAndGroup(select,
                   {.experts = experts.data(),
                    .num_rows = num_rows,
                    .top_k = router.top_k,
                    .num_experts = router.num_experts,
                    .first_slot = first_slot.data(),
                    .slot_row = slot_row.data(),
                    .pair_slot = pair_slot.data(),
                    .scratch = scratch.data(),
                    .expert_counts = counts.data(),
                    .count = done.data()},
                   nullptr);
    EXPECT_EQ(done.Host()[0], 0);
  } else {
    SelectExpertsOfRows(select, nullptr);
  }
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), device_logits.Host().begin(),
                         [](float a, float b) { return a == b || (a != a && b != b); }));
  return {experts.Host(),  weights.Host(),   first_slot.Host(),
          slot_row.Host(), pair_slot.Host(), counts.Host()};
}

void ExpectGrouped(const Grouped& got, int num_rows, int top_k, int num_experts, int counted) {
  std::vector<std::vector<int>> rows_of(static_cast<size_t>(num_experts));
  std::vector<std::vector<int>> pairs_of(static_cast<size_t>(num_experts));
  for (int pair = 0; pair < num_rows * top_k; ++pair) {
    rows_of[got.experts[pair]].push_back(pair / top_k);
    pairs_of[got.experts[pair]].push_back(pair);
  }
  int slot = 0;
  for (int expert = 0; expert < num_experts; ++expert) {
    ASSERT_EQ(got.first_slot[expert], slot);
    for (size_t i = 0; i < rows_of[expert].size(); ++i, ++slot) {
      ASSERT_EQ(got.slot_row[slot], rows_of[expert][i]);
      ASSERT_EQ(got.pair_slot[pairs_of[expert][i]], slot);
    }
    ASSERT_EQ(got.counts[expert], counted + static_cast<int>(rows_of[expert].size()));
  }
  ASSERT_EQ(got.first_slot[num_experts], slot);
}

void ExpectSelected(const Router& router, const std::vector<float>& logits, int num_rows) {
  SCOPED_TRACE(testing::Message() << router.top_k << " of " << router.num_experts << " experts, "
                                  << num_rows << " rows, groups " << router.top_expert_groups
                                  << " of " << router.num_expert_groups);
  const int64_t stride = static_cast<int64_t>(logits.size()) / num_rows;
  for (const How how : {How::kSelect, How::kFused}) {
    const Grouped got = Select(router, logits, stride, num_rows, how);
    for (int row = 0; row < num_rows; ++row) {
      std::vector<float> scratch(logits.begin() + row * stride,
                                 logits.begin() + row * stride + router.num_experts);
      std::array<int32_t, kMaxTopK> experts;
      std::array<float, kMaxTopK> weights;
      kernels::SelectExperts(router, scratch.data(), experts.data(), weights.data());
      for (int i = 0; i < router.top_k; ++i) {
        ASSERT_EQ(got.experts[row * router.top_k + i], experts[i]) << "row " << row;
        ASSERT_NEAR(got.weights[row * router.top_k + i], weights[i],
                    2e-6 * std::abs(weights[i]) + 1e-30);
      }
    }
    if (how == How::kFused) ExpectGrouped(got, num_rows, router.top_k, router.num_experts, 100);
  }
}

// Few different values, so that there are ties.
std::vector<float> CoarseFloats(size_t count, uint32_t seed) {
  std::vector<float> values = Floats(count, seed);
  for (float& value : values) value = std::round(value * 4) / 4;
  return values;
}

TEST(CudaRouting, SelectsTheExpertsThatTheCpuSelects) {
  for (const int num_experts : {1, 8, 33, 60, 128, 160, 384, 512}) {
    for (const int top_k : {1, 2, 6, 8, 64}) {
      if (top_k > num_experts) continue;
      const std::vector<float> correction = Floats(static_cast<size_t>(num_experts), 4);
      for (const int rows : {1, 33}) {
        const auto count = static_cast<size_t>(rows * (num_experts + 2));
        Router router{.num_experts = num_experts, .top_k = top_k, .scale = 2.5f};
        ExpectSelected(router, Floats(count, 5), rows);
        router.norm = RouterNorm::kSum;
        ExpectSelected(router, CoarseFloats(count, 6), rows);
        router.score = RouterScore::kSigmoid;
        ExpectSelected(router, CoarseFloats(count, 7), rows);
        router.correction = correction.data();
        ExpectSelected(router, Floats(count, 8), rows);
      }
    }
  }
}

TEST(CudaRouting, SelectsAmongTheBestGroupsOnly) {
  struct Groups {
    int num_experts, groups, top_groups, top_k;
  };
  for (const Groups& g : {Groups{256, 8, 4, 8}, Groups{160, 8, 3, 6}, Groups{64, 64, 8, 6},
                          Groups{12, 4, 2, 3}, Groups{512, 2, 1, 64}, Groups{384, 128, 64, 8}}) {
    const std::vector<float> correction = Floats(static_cast<size_t>(g.num_experts), 9);
    for (const GroupScore score : {GroupScore::kMax, GroupScore::kTopTwoSum}) {
      Router router{.num_experts = g.num_experts,
                    .top_k = g.top_k,
                    .num_expert_groups = g.groups,
                    .top_expert_groups = g.top_groups,
                    .group_score = score,
                    .norm = RouterNorm::kSum};
      for (const int rows : {1, 30}) {
        const auto count = static_cast<size_t>(rows * g.num_experts);
        ExpectSelected(router, CoarseFloats(count, 10), rows);
        Router sigmoid = router;
        sigmoid.score = RouterScore::kSigmoid;
        sigmoid.correction = correction.data();
        ExpectSelected(sigmoid, Floats(count, 11), rows);
      }
    }
  }
}

TEST(CudaRouting, WeightsAreDividedByTheirNorm) {
  for (const float p : {1.0f, 2.0f, 3.5f, kInfinity}) {
    ExpectSelected(
        {.num_experts = 16, .top_k = 4, .norm = RouterNorm::kPNorm, .norm_p = p, .scale = 0.5f},
        Floats(48, 12), 3);
  }
  // Sigmoids that are all zero.
  ExpectSelected(
      {.num_experts = 8, .top_k = 2, .score = RouterScore::kSigmoid, .norm = RouterNorm::kSum},
      std::vector<float>(8, -1000.0f), 1);
  // Zeros of either sign are the same, and what is infinitely unlikely can be chosen.
  ExpectSelected({.num_experts = 4, .top_k = 2}, {-0.0f, 0.0f, -0.0f, 0.0f}, 1);
  ExpectSelected({.num_experts = 4, .top_k = 3}, {-kInfinity, 2, -kInfinity, -kInfinity}, 1);
}

TEST(CudaRouting, NotANumberIsToldByEveryWeight) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const int groups : {1, 4}) {
      const Router router{.num_experts = 40,
                          .top_k = 4,
                          .score = score,
                          .num_expert_groups = groups,
                          .top_expert_groups = groups == 1 ? 1 : 2,
                          .norm = RouterNorm::kSum};
      for (const int at : {0, 17, -1}) {
        std::vector<float> logits = Floats(40, 13);
        if (at >= 0) {
          logits[at] = kNan;
        } else {
          std::fill(logits.begin(), logits.end(), kNan);
        }
        const Grouped got = Select(router, logits, 40, 1, How::kFused);
        for (int i = 0; i < 4; ++i) {
          EXPECT_TRUE(std::isnan(got.weights[i]));
          EXPECT_GE(got.experts[i], i == 0 ? 0 : got.experts[i - 1] + 1);
          EXPECT_LT(got.experts[i], 40);
        }
        ExpectGrouped(got, 1, 4, 40, 100);
      }
    }
  }
}

// Distinct experts of each row, in increasing order; `even`: all alike, otherwise few of them.
std::vector<int32_t> RandomExperts(int num_rows, int top_k, int num_experts, bool even,
                                   uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> all(static_cast<size_t>(num_experts));
  std::vector<int32_t> experts;
  for (int row = 0; row < num_rows; ++row) {
    std::iota(all.begin(), all.end(), 0);
    if (even) std::shuffle(all.begin(), all.end(), random);
    std::sort(all.begin(), all.begin() + top_k);
    experts.insert(experts.end(), all.begin(), all.begin() + top_k);
  }
  return experts;
}

TEST(CudaRouting, SortsPairsByExpertAndRow) {
  struct Shape {
    int rows, top_k, experts;
  };
  for (const Shape& s :
       {Shape{1, 1, 1}, Shape{1, 8, 128}, Shape{3, 2, 8}, Shape{128, 8, 128}, Shape{129, 8, 64},
        Shape{700, 6, 512}, Shape{4, 64, 100}, Shape{2500, 1, 3}, Shape{1000, 8, 256}}) {
    for (const bool even : {false, true}) {
      SCOPED_TRACE(testing::Message() << s.rows << " rows, " << s.top_k << " of " << s.experts);
      const auto pairs = static_cast<size_t>(s.rows * s.top_k);
      const auto num_experts = static_cast<size_t>(s.experts);
      Grouped got;
      got.experts = RandomExperts(s.rows, s.top_k, s.experts, even, 14);
      const DeviceArray<int32_t> experts(got.experts);
      const DeviceArray<int32_t> first_slot(num_experts + 1);
      const DeviceArray<int32_t> slot_row(pairs);
      const DeviceArray<int32_t> pair_slot(pairs);
      const DeviceArray<int32_t> scratch(
          static_cast<size_t>(GroupScratch(s.rows, s.experts, s.top_k)));
      const DeviceArray<int32_t> counts(std::vector<int32_t>(num_experts, 5));
      GroupByExpert({.experts = experts.data(),
                     .num_rows = s.rows,
                     .top_k = s.top_k,
                     .num_experts = s.experts,
                     .first_slot = first_slot.data(),
                     .slot_row = slot_row.data(),
                     .pair_slot = pair_slot.data(),
                     .scratch = scratch.data(),
                     .expert_counts = counts.data()},
                    nullptr);
      got.first_slot = first_slot.Host();
      got.slot_row = slot_row.Host();
      got.pair_slot = pair_slot.Host();
      got.counts = counts.Host();
      ExpectGrouped(got, s.rows, s.top_k, s.experts, 5);
    }
  }
}

struct CombineCase {
  int rows = 3;
  int top_k = 8;
  int experts = 128;
  int size = 256;
  bool has_shared = false;
  bool has_gate = false;
  int extra_stride = 0;
};

void ExpectCombined(const CombineCase& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.top_k << " of " << c.experts
                                  << ", size " << c.size);
  const auto pairs = static_cast<size_t>(c.rows * c.top_k);
  const int64_t stride = c.size + c.extra_stride;
  const std::vector<int32_t> experts = RandomExperts(c.rows, c.top_k, c.experts, true, 15);
  const std::vector<float> weights = Floats(pairs, 16);
  std::vector<int32_t> pair_slot(pairs);
  std::iota(pair_slot.begin(), pair_slot.end(), 0);
  std::shuffle(pair_slot.begin(), pair_slot.end(), std::mt19937(17));
  const std::vector<float> slot_out = Floats(pairs * static_cast<size_t>(stride), 18);
  const std::vector<float> shared = Floats(static_cast<size_t>(c.rows * stride), 19);
  const std::vector<float> gates = Floats(static_cast<size_t>(3 * c.rows), 20);
  std::vector<float> hidden = Floats(static_cast<size_t>(c.rows * stride), 21);

  const DeviceArray<int32_t> device_experts(experts);
  const DeviceArray<float> device_weights(weights);
  const DeviceArray<int32_t> device_pair_slot(pair_slot);
  const DeviceArray<float> device_slot_out(slot_out);
  const DeviceArray<float> device_shared(shared);
  const DeviceArray<float> device_gates(gates);
  const DeviceArray<float> device_hidden(hidden);
  CombineExperts({.experts = device_experts.data(),
                  .weights = device_weights.data(),
                  .pair_slot = device_pair_slot.data(),
                  .num_rows = c.rows,
                  .top_k = c.top_k,
                  .size = c.size,
                  .slot_out = device_slot_out.data(),
                  .slot_stride = stride,
                  .shared = c.has_shared ? device_shared.data() : nullptr,
                  .shared_stride = stride,
                  .gate_logits = c.has_gate ? device_gates.data() : nullptr,
                  .gate_stride = 3,
                  .scale = 0.7f,
                  .hidden = device_hidden.data(),
                  .hidden_stride = stride},
                 nullptr);
  const std::vector<float> got = device_hidden.Host();
  for (int row = 0; row < c.rows; ++row) {
    std::vector<const float*> terms;
    for (int i = 0; i < c.top_k; ++i) {
      terms.push_back(slot_out.data() + pair_slot[row * c.top_k + i] * stride);
    }
    std::array<Merge, kMaxTopK> merges;
    TreeMerges(experts.data() + row * c.top_k, c.top_k, merges.data());
    Combine combine{.rows = terms.data(),
                    .weights = weights.data() + row * c.top_k,
                    .merges = merges.data(),
                    .count = c.top_k,
                    .scale = 0.7f,
                    .out = hidden.data() + row * stride,
                    .size = c.size};
    if (c.has_shared) combine.shared = shared.data() + row * stride;
    if (c.has_gate) combine.shared_weight = 1.0f / (1.0f + std::exp(-gates[3 * row]));
    reference::Kernels().combine(combine);
    for (int i = 0; i < stride; ++i) {
      // Only the sigmoid may be another by a rounding.
      const double error = c.has_gate ? 1e-6 : 0;
      ASSERT_NEAR(got[row * stride + i], hidden[row * stride + i], error) << i;
    }
  }
}

TEST(CudaRouting, CombinesAlongTheTreeWithTheRoundingsOfTheCpu) {
  for (const int top_k : {0, 1, 2, 3, 6, 8, 9, 64}) {
    for (const int experts : {64, 128, 512}) {
      ExpectCombined({.top_k = top_k, .experts = experts});
    }
  }
  ExpectCombined({.size = 2048, .has_shared = true});
  ExpectCombined({.size = 1000, .has_shared = true, .has_gate = true, .extra_stride = 8});
  ExpectCombined({.size = 333, .has_shared = true, .has_gate = true, .extra_stride = 1});
}

// The sum and the norm behind it, in one call or in two.
struct CombinedAndNormed {
  std::vector<float> hidden;
  std::vector<Bf16> normed;
  bool operator==(const CombinedAndNormed&) const = default;
};
CombinedAndNormed CombineThenNorm(const CombineCase& c, bool at_once) {
  const auto pairs = static_cast<size_t>(c.rows * c.top_k);
  const int64_t stride = c.size + c.extra_stride;
  const int padded = PaddedDepth(c.size);
  std::vector<int32_t> pair_slot(pairs);
  std::iota(pair_slot.rbegin(), pair_slot.rend(), 0);
  const DeviceArray<int32_t> experts(RandomExperts(c.rows, c.top_k, c.experts, true, 22));
  const DeviceArray<float> weights(Floats(pairs, 23));
  const DeviceArray<int32_t> device_pair_slot(pair_slot);
  const DeviceArray<float> slot_out(Floats(pairs * static_cast<size_t>(stride), 24));
  const DeviceArray<float> shared(Floats(static_cast<size_t>(c.rows * stride), 25));
  const DeviceArray<float> norm_weight(Floats(static_cast<size_t>(c.size), 26));
  const DeviceArray<float> hidden(Floats(static_cast<size_t>(c.rows * stride), 27));
  const DeviceArray<Bf16> normed(std::vector<Bf16>(static_cast<size_t>(c.rows * padded), 0x7fff));
  const CombineRows combine{.experts = experts.data(),
                            .weights = weights.data(),
                            .pair_slot = device_pair_slot.data(),
                            .num_rows = c.rows,
                            .top_k = c.top_k,
                            .size = c.size,
                            .slot_out = slot_out.data(),
                            .slot_stride = stride,
                            .shared = c.has_shared ? shared.data() : nullptr,
                            .shared_stride = stride,
                            .scale = 0.7f,
                            .hidden = hidden.data(),
                            .hidden_stride = stride};
  const NormRows norm{.epsilon = 1e-5f,
                      .weight = norm_weight.data(),
                      .size = c.size,
                      .num_rows = c.rows,
                      .x = hidden.data(),
                      .x_stride = stride,
                      .out = normed.data(),
                      .out_stride = padded};
  if (at_once) {
    CombineAndNormalize(combine, norm, nullptr);
  } else {
    CombineExperts(combine, nullptr);
    Normalize(norm, nullptr);
  }
  return {hidden.Host(), normed.Host()};
}

TEST(CudaRouting, ASumAndItsNormAreThoseOfTwoCalls) {
  for (const CombineCase& c :
       {CombineCase{}, CombineCase{.rows = 70, .top_k = 2, .size = 1000},
        CombineCase{.rows = 2, .size = 2048, .has_shared = true},
        CombineCase{.rows = 1, .top_k = 64, .size = 4096}, CombineCase{.top_k = 4, .size = 12288},
        CombineCase{.size = 333, .has_shared = true, .extra_stride = 1},
        CombineCase{.top_k = 64, .size = 8}}) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows of " << c.size);
    EXPECT_TRUE(CombineThenNorm(c, true) == CombineThenNorm(c, false));
  }
}

TEST(CudaRouting, WithoutRowsNothingIsDone) {
  RouterLogits({}, nullptr);
  SelectExpertsOfRows({}, nullptr);
  GroupByExpert({}, nullptr);
  SelectAndGroup({}, {}, nullptr);
  CombineExperts({}, nullptr);
  CombineAndNormalize({}, {}, nullptr);
  Synchronize();
}

}  // namespace
}  // namespace convene::kernels::cuda
