#include "planner/explain_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "planner/asked_question_test.h"
#include "planner/where_plan_wins.h"

namespace convene::planner {
namespace {

using ::testing::HasSubstr;

// Wherever it says that another plan wins, it does when it is asked there, and nowhere else.
TEST(ExplainPlan, PlacesWhereOthersWinAreFoundByAsking) {
  Asked asked(3e8);
  asked.question.allowed.layout = true;
  asked.workload = {.requests = {{64, 64}}, .batch = 2};
  PlanSearch search(asked.question);
  const Result<PlanAnswer> answer = SearchPlan(search);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  const Explanation explanation = ExplainPlan(search, *answer);
  ASSERT_FALSE(explanation.alternatives.empty());
  const Parameter batches = Batches(asked.question);
  int places = 0;
  for (const Alternative& alternative : explanation.alternatives) {
    EXPECT_FALSE(alternative.reason.empty());
    const Candidate& other = answer->candidates[alternative.candidate];
    if (alternative.slower < 0) continue;
    PlanAtPoints at_chosen(search, answer->candidates[answer->chosen]);
    PlanAtPoints at_other(search, other);
    const auto outcome_at = [&](double batch) {
      return OutcomeAt(at_chosen, at_other, batches, batch);
    };
    const std::vector<Span> spans = SpansOf(batches, 1, outcome_at);
    for (const Span& span : spans) {
      EXPECT_THAT(alternative.would_win, HasSubstr(batches.words(span, true)));
    }
    places += static_cast<int>(spans.size());
    for (size_t i = batches.present + 1; i < batches.values.size(); ++i) {
      const double batch = batches.values[i];
      const bool is_said = std::ranges::any_of(
          spans, [&](const Span& span) { return span.nearest <= batch && batch <= span.farthest; });
      EXPECT_EQ(is_said, outcome_at(batch) == Outcome::kWins)
          << batch << ": " << alternative.would_win;
    }
  }
  EXPECT_GT(places, 0);
  ASSERT_FALSE(explanation.curves.empty());
  for (size_t i = 0; i < explanation.batches.size(); ++i) {
    double least = 1e9;
    for (const RegretCurve& curve : explanation.curves) least = std::min(least, curve.regret[i]);
    // Others that are not shown may be better.
    ASSERT_GE(explanation.best[i], 0);
    const auto is_best = [&](const RegretCurve& curve) {
      return curve.candidate == explanation.best[i];
    };
    if (std::ranges::any_of(explanation.curves, is_best)) {
      EXPECT_NEAR(least, 0, 1e-12);
    } else {
      EXPECT_GE(least, 0);
    }
  }
}

TEST(ExplainPlan, SystemsThatPeopleKnowByNameAreAmongTheAlternatives) {
  Asked asked(3e8, {1, 2, 4}, {"bf16", "int8", "int4"});
  asked.question.allowed.layout = true;
  PlanSearch search(asked.question);
  const Result<PlanAnswer> answer = SearchPlan(search);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  const Candidate& chosen = answer->candidates[answer->chosen];
  std::set<std::pair<bool, bool>> divisions;  // heads and experts cut on all ranks of a plan
  const auto add = [&](const Candidate& one) {
    if (one.setup.num_ranks == 1 || one.setup.weights != chosen.setup.weights) return;
    const strategy::Layout& layout = one.plan.layout;
    divisions.emplace(layout.attention_tp == one.setup.num_ranks,
                      layout.expert_tp == one.setup.num_ranks);
  };
  add(chosen);
  const Explanation explanation = ExplainPlan(search, *answer);
  double last = -1;
  for (const Alternative& each : explanation.alternatives) {
    add(answer->candidates[each.candidate]);
    EXPECT_GE(each.slower, last);
    last = each.slower;
  }
  EXPECT_TRUE(divisions.contains({true, true}));  // tensor parallel
  EXPECT_TRUE(std::ranges::any_of(divisions, [](const auto& cut) { return !cut.second; }));
}

Conditions SlowerBy(const std::string& figure, double factor) {
  Conditions conditions;
  (figure == "memory"  ? conditions.machine.memory
   : figure == "cores" ? conditions.machine.compute
                       : conditions.link) = factor;
  return conditions;
}

// Of all that were priced and may be chosen: by index.
int ChoiceAt(PlanSearch& search, const PlanAnswer& answer, const Conditions& conditions) {
  std::vector<Candidate> priced;
  std::vector<int> indices;
  for (int i = 0; i < std::ssize(answer.candidates); ++i) {
    Candidate one = answer.candidates[i];
    if (!one.is_ranked() || !one.is_allowed()) continue;
    const auto figures =
        search.FiguresOf(one.setup, one.plan, search.question().workload, conditions);
    if (!figures) continue;
    const auto memory = search.question().memory_of(one.setup, one.plan, figures->batch);
    if (!memory || !memory->fits(one.memory_limit)) continue;
    one.figures = *figures;
    priced.push_back(one);
    indices.push_back(i);
  }
  std::vector<const Candidate*> sorted;
  for (const Candidate& one : priced) sorted.push_back(&one);
  if (sorted.empty()) return -1;
  std::ranges::stable_sort(sorted, {}, [](const Candidate* one) { return one->figures->score; });
  return indices[&ChoiceOf(search, sorted) - priced.data()];
}

TEST(ExplainPlan, AFigureFlipsTheChoiceWhereItSays) {
  Asked asked(1e9);
  asked.question.allowed.layout = true;
  PlanSearch search(asked.question);
  const Result<PlanAnswer> answer = SearchPlan(search);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  const Explanation explanation = ExplainPlan(search, *answer);
  ASSERT_EQ(explanation.flips.size(), 3u);
  int found = 0;
  for (const Flip& flip : explanation.flips) {
    EXPECT_THAT(flip.words, HasSubstr(flip.figure));
    const auto choice_at = [&](double factor) {
      return ChoiceAt(search, *answer, SlowerBy(flip.figure, 1 / factor));
    };
    if (flip.candidate < 0) {
      for (const double factor : {1.0 / 16, 16.0}) {
        EXPECT_EQ(choice_at(factor), answer->chosen) << flip.words;
      }
      continue;
    }
    ++found;
    EXPECT_EQ(choice_at(flip.factor), flip.candidate) << flip.words;
  }
  EXPECT_GT(found, 0);
}

// Prompts and answers that are best in two divisions of the experts (hybrid_pass_test.cc).
TEST(ExplainPlan, NoPlanStandsTwiceAmongTheAlternatives) {
  Asked asked(1e8, {2});
  for (model::LayerSpec& layer : asked.spec.layers) layer.moe->top_k = 1;
  for (auto& task : asked.profile.steps[0].tasks) task->per_weight_byte.value = {1e-10, 1e-10};
  asked.question.allowed.layout = true;
  asked.question.passes_off = {"pipelines", "micro_batches", "heads"};
  int num_hybrid = 0;
  for (const int answer_tokens : {8, 256, 8192}) {
    asked.workload = {.requests = {{16384, answer_tokens}},
                      .batch = 4,
                      .routing = {.skew = 0.9, .num_experts_skew = 2}};
    PlanSearch search(asked.question);
    const Result<PlanAnswer> answer = SearchPlan(search);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    std::set<int> told = {answer->chosen};
    for (const Alternative& each : ExplainPlan(search, *answer).alternatives) {
      const Candidate& other = answer->candidates[each.candidate];
      EXPECT_TRUE(told.insert(each.candidate).second) << Describe(other);
      if (other.plan.changes_layout()) ++num_hybrid;
    }
  }
  EXPECT_GT(num_hybrid, 1);
}

// Nobody can choose it there.
TEST(ExplainPlan, WhatFlipsTheChoiceHasTheMemoryForWhatRunsTogether) {
  Asked asked(3e8, {1, 2});
  asked.question.allowed.layout = true;
  asked.question.passes_off = {"hybrid", "disaggregated", "pipelines", "micro_batches"};
  asked.workload = {.requests = {{64, 64}}, .arrival_rate = 2};
  int num_flips = 0;
  for (const int most : {8, 12, 16, 24, 32, 48}) {
    asked.question.memory_of = [](const RankSetup&, const plan::Plan&,
                                  int batch) -> Result<RankMemory> {
      return RankMemory{.weights_bytes = 1, .kv_bytes = static_cast<uint64_t>(batch)};
    };
    asked.question.memory_per_rank = [most](int) { return static_cast<uint64_t>(most + 1); };
    PlanSearch search(asked.question);
    const Result<PlanAnswer> answer = SearchPlan(search);
    if (!answer) continue;
    for (const Flip& flip : ExplainPlan(search, *answer).flips) {
      if (flip.candidate < 0) continue;
      ++num_flips;
      EXPECT_EQ(ChoiceAt(search, *answer, SlowerBy(flip.figure, 1 / flip.factor)), flip.candidate)
          << flip.words;
    }
  }
  EXPECT_GT(num_flips, 0);
}

TEST(ExplainPlan, ReasonsAreDifferencesOfTasks) {
  PlanFigures fast{.score = 1};
  fast.path[static_cast<size_t>(schedule::TaskKind::kExperts)] = 0.6;
  fast.path[static_cast<size_t>(schedule::TaskKind::kDispatch)] = 0.4;
  PlanFigures slow{.imbalance = 2.1, .score = 1.2};
  slow.path[static_cast<size_t>(schedule::TaskKind::kExperts)] = 0.9;
  slow.path[static_cast<size_t>(schedule::TaskKind::kCombine)] = 0.3;
  EXPECT_EQ(WhySlower(slow, fast), "experts +30.0 % (imbalance 2.10), exchanges -10.0 %");
  EXPECT_EQ(WhySlower(fast, slow),
            "experts -25.0 % (imbalance 2.10 of the chosen plan), exchanges +8.3 %");
  // Of the plan with less to compute it is no reason.
  std::swap(slow.imbalance, fast.imbalance);
  EXPECT_EQ(WhySlower(slow, fast), "experts +30.0 %, exchanges -10.0 %");
  slow.waiting_seconds = fast.waiting_seconds + 0.4 * fast.score;
  EXPECT_EQ(WhySlower(slow, fast),
            "waiting for other requests +40.0 %, experts +30.0 %, exchanges -10.0 %");
}

}  // namespace
}  // namespace convene::planner
