#include "kernels/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace convene::kernels {
namespace {

TEST(SelectExperts, TakesTheLargestAndTheLowestIndexOnTies) {
  float logits[] = {1, 3, 3, 2, 3};
  int32_t experts[2];
  float weights[2];
  SelectExperts({.num_experts = 5, .top_k = 2}, logits, experts, weights);
  EXPECT_EQ(experts[0], 1);
  EXPECT_EQ(experts[1], 2);
  EXPECT_FLOAT_EQ(weights[0], weights[1]);
}

TEST(SelectExperts, NormalisesAsTheGateSays) {
  float logits[] = {0.5f, -1, 2, 0};
  const double total = std::exp(0.5) + std::exp(-1.0) + std::exp(2.0) + 1;
  const double a = std::exp(0.5) / total;
  const double b = std::exp(2.0) / total;
  int32_t experts[2];
  float weights[2];
  SelectExperts({.num_experts = 4, .top_k = 2}, logits, experts, weights);
  EXPECT_NEAR(weights[0], a, 1e-6);
  EXPECT_NEAR(weights[1], b, 1e-6);
  SelectExperts({.num_experts = 4, .top_k = 2, .norm = RouterNorm::kSum}, logits, experts, weights);
  EXPECT_NEAR(weights[0], a / (a + b), 1e-6);
  SelectExperts({.num_experts = 4, .top_k = 2, .norm = RouterNorm::kPNorm, .norm_p = 2}, logits,
                experts, weights);
  EXPECT_NEAR(weights[1], b / std::sqrt(a * a + b * b), 1e-6);
}

TEST(SelectExperts, TakesAllExpertsOfOne) {
  float logit = -3;
  int32_t expert;
  float weight;
  SelectExperts({.num_experts = 1, .top_k = 1}, &logit, &expert, &weight);
  EXPECT_EQ(expert, 0);
  EXPECT_EQ(weight, 1.0f);
}

TEST(SelectExperts, StaysInRangeWhenLogitsAreNotNumbers) {
  const float nan = std::nanf("");
  float logits[] = {nan, nan, nan};
  int32_t experts[2];
  float weights[2];
  SelectExperts({.num_experts = 3, .top_k = 2}, logits, experts, weights);
  EXPECT_EQ(experts[0], 0);
  EXPECT_EQ(experts[1], 1);
}

TEST(SelectExperts, WeightsTellOfAnExpertWhoseLogitIsNotANumber) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const int bad : {0, 1, 3}) {
      float logits[] = {1, 3, 2, -4};
      logits[bad] = std::nanf("");
      int32_t experts[2];
      float weights[2];
      SelectExperts({.num_experts = 4, .top_k = 2, .score = score}, logits, experts, weights);
      EXPECT_TRUE(std::isnan(weights[0]) && std::isnan(weights[1])) << bad;
    }
  }
}

TEST(SelectExperts, ScoresBySigmoidAndScalesAfterTheNorm) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const float logits[] = {0.5f, -1, 2, 0};
  int32_t experts[2];
  float weights[2];
  float scores[4];
  std::copy(logits, logits + 4, scores);
  SelectExperts({.num_experts = 4, .top_k = 2, .score = RouterScore::kSigmoid, .scale = 2.5f},
                scores, experts, weights);
  EXPECT_EQ(experts[0], 0);
  EXPECT_EQ(experts[1], 2);
  EXPECT_NEAR(weights[0], 2.5 * sigmoid(0.5), 1e-6);
  EXPECT_NEAR(weights[1], 2.5 * sigmoid(2), 1e-6);
  std::copy(logits, logits + 4, scores);
  SelectExperts({.num_experts = 4,
                 .top_k = 2,
                 .score = RouterScore::kSigmoid,
                 .norm = RouterNorm::kSum,
                 .scale = 2.5f},
                scores, experts, weights);
  EXPECT_NEAR(weights[0], 2.5 * sigmoid(0.5) / (sigmoid(0.5) + sigmoid(2)), 1e-6);
}

TEST(SelectExperts, CorrectsTheChoiceButNotTheWeights) {
  float logits[] = {0.5f, -1, 2, 0};
  const float correction[] = {-1, 1, 0, 0};
  int32_t experts[2];
  float weights[2];
  SelectExperts(
      {.num_experts = 4, .top_k = 2, .score = RouterScore::kSigmoid, .correction = correction},
      logits, experts, weights);
  EXPECT_EQ(experts[0], 1);
  EXPECT_EQ(experts[1], 2);
  EXPECT_NEAR(weights[0], 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(weights[1], 1 / (1 + std::exp(-2.0)), 1e-6);
}

TEST(SelectExperts, DividesNothingByNothing) {
  float logits[] = {-200, -300, -400};
  int32_t experts[2];
  float weights[2];
  SelectExperts(
      {.num_experts = 3, .top_k = 2, .score = RouterScore::kSigmoid, .norm = RouterNorm::kSum},
      logits, experts, weights);
  EXPECT_EQ(experts[0], 0);
  EXPECT_EQ(experts[1], 1);
  EXPECT_EQ(weights[0], 0.0f);
}

TEST(SelectExperts, ChoosesAmongTheGroupsWithTheLargestScore) {
  float logits[] = {5, -9, 4, 4, 3, 4.5f};  // groups of two
  int32_t experts[2];
  float weights[2];
  Router router{.num_experts = 6, .top_k = 2, .num_expert_groups = 3, .top_expert_groups = 1};
  SelectExperts(router, logits, experts, weights);
  EXPECT_EQ(experts[0], 0);
  EXPECT_EQ(experts[1], 1);
  double total = 0;
  for (const float logit : logits) total += std::exp(logit);
  EXPECT_NEAR(weights[0], std::exp(5) / total, 1e-6) << "of all experts' softmax";

  router.score = RouterScore::kSigmoid;
  router.group_score = GroupScore::kTopTwoSum;
  SelectExperts(router, logits, experts, weights);
  EXPECT_EQ(experts[0], 2);
  EXPECT_EQ(experts[1], 3);
}

TEST(SelectExperts, TakesTheLowestGroupAndIndexOnTies) {
  std::vector<float> logits(12, 1.0f);
  int32_t experts[3];
  float weights[3];
  for (const auto kind : {GroupScore::kMax, GroupScore::kTopTwoSum}) {
    Router router{.num_experts = 12,
                  .top_k = 3,
                  .num_expert_groups = 4,
                  .top_expert_groups = 2,
                  .group_score = kind};
    SelectExperts(router, logits.data(), experts, weights);
    EXPECT_EQ(std::vector<int32_t>(experts, experts + 3), (std::vector<int32_t>{0, 1, 2}));
  }
  logits = {0, 0, 2, 2, 0, 0, 2, 2, 0, 0, 2, 2};  // groups of one have no second
  Router router{.num_experts = 12,
                .top_k = 3,
                .num_expert_groups = 12,
                .top_expert_groups = 3,
                .group_score = GroupScore::kTopTwoSum};
  SelectExperts(router, logits.data(), experts, weights);
  EXPECT_EQ(std::vector<int32_t>(experts, experts + 3), (std::vector<int32_t>{2, 3, 6}));
}

TEST(SelectExperts, EqualsItsDefinitionWithGroupsAndCorrection) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  constexpr int kNum = 32;
  constexpr int kGroups = 8;
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<float> logits(kNum), correction(kNum), choice(kNum);
    std::vector<double> score(kNum);
    for (int i = 0; i < kNum; ++i) {
      logits[i] = normal(random);
      correction[i] = 0.3f * normal(random);
      score[i] = 1 / (1 + std::exp(-double{logits[i]}));
      choice[i] = static_cast<float>(score[i]) + correction[i];
    }
    std::vector<int> groups(kGroups);
    std::iota(groups.begin(), groups.end(), 0);
    const auto worth = [&](int group) {
      std::vector<float> of(choice.begin() + group * 4, choice.begin() + group * 4 + 4);
      std::sort(of.rbegin(), of.rend());
      return of[0] + of[1];
    };
    std::sort(groups.begin(), groups.end(), [&](int a, int b) { return worth(a) > worth(b); });
    std::vector<int32_t> want;
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 4; ++j) want.push_back(groups[i] * 4 + j);
    }
    std::sort(want.begin(), want.end(), [&](int a, int b) { return choice[a] > choice[b]; });
    want.resize(5);
    std::sort(want.begin(), want.end());
    std::vector<int32_t> experts(5);
    float weights[5];
    SelectExperts({.num_experts = kNum,
                   .top_k = 5,
                   .score = RouterScore::kSigmoid,
                   .correction = correction.data(),
                   .num_expert_groups = kGroups,
                   .top_expert_groups = 3,
                   .group_score = GroupScore::kTopTwoSum},
                  logits.data(), experts.data(), weights);
    ASSERT_EQ(experts, want);
    for (int i = 0; i < 5; ++i) ASSERT_NEAR(weights[i], score[want[i]], 1e-6);
  }
}

// The tree's definition, straight from its words: split the index range in halves.
float SumOfRange(const std::vector<int32_t>& experts, const std::vector<float>& values, int begin,
                 int end, bool* any) {
  *any = false;
  if (end - begin == 1) {
    const auto found = std::find(experts.begin(), experts.end(), begin);
    *any = found != experts.end();
    return *any ? values[found - experts.begin()] : 0.0f;
  }
  bool left_any;
  bool right_any;
  const int middle = (begin + end) / 2;
  const float left = SumOfRange(experts, values, begin, middle, &left_any);
  const float right = SumOfRange(experts, values, middle, end, &right_any);
  *any = left_any || right_any;
  return left_any && right_any ? left + right : left_any ? left : right;
}

float SumByMerges(std::vector<int32_t> experts, std::vector<float> values) {
  std::vector<Merge> merges(experts.size());
  TreeMerges(experts.data(), static_cast<int>(experts.size()), merges.data());
  for (size_t i = 0; i + 1 < experts.size(); ++i) values[merges[i].into] += values[merges[i].from];
  return values[0];
}

TEST(TreeMerges, SumsAlongTheFixedTreeAndEqualsTheSumOfRanksSubtrees) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 2000; ++round) {
    const int num_experts = std::array{1, 5, 8, 60, 64, 128}[round % 6];
    const int top_k = std::min(num_experts, 1 + round / 6 % 9);
    std::vector<int32_t> all(num_experts);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    std::vector<int32_t> experts(all.begin(), all.begin() + top_k);
    std::sort(experts.begin(), experts.end());
    std::vector<float> values(top_k);
    for (float& value : values) value = normal(random);

    int tree_size = 1;
    while (tree_size < num_experts) tree_size *= 2;
    bool any;
    const float expected = SumOfRange(experts, values, 0, tree_size, &any);
    ASSERT_EQ(SumByMerges(experts, values), expected);

    // Ranks with an aligned power-of-two share each sum their own experts; then the ranks' sums are
    // added along the same tree.
    for (int num_ranks = 2; num_ranks <= std::min(4, tree_size); num_ranks *= 2) {
      const int share = tree_size / num_ranks;
      std::vector<int32_t> ranks;
      std::vector<float> partial;
      for (int rank = 0; rank < num_ranks; ++rank) {
        std::vector<int32_t> own;
        std::vector<float> own_values;
        for (int i = 0; i < top_k; ++i) {
          if (experts[i] / share != rank) continue;
          own.push_back(experts[i]);
          own_values.push_back(values[i]);
        }
        if (own.empty()) continue;
        ranks.push_back(rank);
        partial.push_back(SumByMerges(own, own_values));
      }
      ASSERT_EQ(SumByMerges(ranks, partial), expected) << num_ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace convene::kernels
