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
    const auto slower = [&flip](double factor) {
      Conditions conditions;
      (flip.figure == "memory"  ? conditions.machine.memory
       : flip.figure == "cores" ? conditions.machine.compute
                                : conditions.link) = factor;
      return conditions;
    };
    const auto score_of = [&](const Candidate& one, double factor) {
      return search.FiguresOf(one.setup, one.plan, asked.workload, slower(factor))->score;
    };
    if (flip.candidate < 0) {
      // Then none of all that were priced is better by what would be certain.
      for (const double factor : {1.0 / 16, 16.0}) {
        const double chosen = score_of(answer->candidates[answer->chosen], factor);
        for (const Candidate& one : answer->candidates) {
          if (!one.is_ranked() || !one.is_allowed()) continue;
          EXPECT_GT(1.1 * score_of(one, factor), chosen) << flip.words << ": " << Describe(one);
        }
      }
      continue;
    }
    ++found;
    const Candidate& other = answer->candidates[flip.candidate];
    const Candidate& chosen = answer->candidates[answer->chosen];
    EXPECT_LT(score_of(other, 1 / flip.factor), score_of(chosen, 1 / flip.factor)) << flip.words;
  }
  EXPECT_GT(found, 0);
}

TEST(ExplainPlan, ReasonsAreDifferencesOfTasks) {
  PlanFigures fast{.score = 1};
  fast.path[static_cast<size_t>(schedule::TaskKind::kExperts)] = 0.6;
  fast.path[static_cast<size_t>(schedule::TaskKind::kDispatch)] = 0.4;
  PlanFigures slow{.imbalance = 2.1, .score = 1.2};
  slow.path[static_cast<size_t>(schedule::TaskKind::kExperts)] = 0.9;
  slow.path[static_cast<size_t>(schedule::TaskKind::kCombine)] = 0.3;
  EXPECT_EQ(WhySlower(slow, fast), "experts +30.0 % (imbalance 2.10), exchanges -10.0 %");
}

}  // namespace
}  // namespace convene::planner
