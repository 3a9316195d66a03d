#include "planner/sequences_together.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/units.h"
#include "planner/paged_plans.h"
#include "planner/pipeline_passes.h"
#include "planner/plan_search.h"

namespace convene::planner {
namespace {

// Best plans of one number of sequences that are tried with others.
constexpr size_t kMostPlans = 4;
// Requests are also cut into so many equal parts, so that the last ones do not run almost alone.
constexpr int kMostParts = 4;
// A gain that is worth the memory and the wait for first tokens.
constexpr double kLeastGain = 1.03;

std::set<int> NumbersToTry(int first, int num_requests, int most_by_steps) {
  const int most = std::min({num_requests, plan::kMostSequences, most_by_steps});
  std::set<int> numbers = {std::min(first, most), most};
  for (int count = first; count < most; count *= 2) numbers.insert(count);
  for (int parts = 1; parts <= kMostParts; ++parts) {
    const int part = (num_requests + parts - 1) / parts;
    if (part > first && part <= most) numbers.insert(part);
  }
  return numbers;
}

class Chooser {
 public:
  Chooser(PlanSearch& search, const PlanAnswer& answer) : search_(search) {
    for (const Candidate& one : answer.candidates) {
      if (one.is_ranked() && one.is_allowed() && plans_.size() < kMostPlans) plans_.push_back(one);
    }
  }

  // Sequences that steps of so many tokens of a group of ranks have room for, a token of each, with
  // the plan that has the most groups.
  int MostWith(int step_tokens) const {
    int most = step_tokens;
    for (const Candidate& one : plans_) {
      const int64_t of_groups = int64_t{step_tokens} * one.plan.layout.attention_dp;
      most = std::max(most, static_cast<int>(std::min<int64_t>(of_groups, plan::kMostSequences)));
    }
    return most;
  }

  // Until all requests are answered; nothing: no plan has the memory.
  std::optional<double> SecondsWith(int batch) {
    std::optional<double> least;
    for (const Candidate& plan : plans_) {
      for (const plan::Plan& fitting : ThatFit(plan, batch)) {
        const std::optional<double> seconds = SecondsOfAll(plan.setup, fitting, batch);
        if (seconds && (!least || *seconds < *least)) least = seconds;
      }
    }
    return least;
  }

 private:
  // With everything in memory, or else with as much of it as there is room for.
  std::vector<plan::Plan> ThatFit(const Candidate& candidate, int batch) {
    const PlanQuestion& question = search_.question();
    plan::Plan whole = candidate.plan;
    whole.experts_in_memory.reset();
    whole.spilled_kv.reset();
    whole.sequences = 0;
    // As the pass `whole_decode` says it of so many.
    if (whole.cut_from_tokens > 0) whole.cut_from_tokens = WholeDecodeFrom(batch);
    const uint64_t common = question.memory_per_rank(candidate.setup.num_ranks);
    const Result<RankMemory> memory = question.memory_of(candidate.setup, whole, batch);
    if (!memory) return {};
    if (memory->fits(common) || IsOff(question, "memory")) return {whole};
    const bool may_page = question.experts_that_fit && !IsOff(question, "paging");
    if (!may_page || !plan::CanPage(whole)) return {};
    PagedPlans paged = PagedPlansOf(question, candidate.setup, whole, batch, memory->limit(common));
    std::vector<plan::Plan> plans = std::move(paged.spilled);
    if (paged.experts) plans.push_back(*std::move(paged.experts));
    return plans;
  }

  std::optional<double> SecondsOf(const RankSetup& setup, const plan::Plan& plan, int batch) {
    Workload workload = search_.question().workload;
    workload.batch = batch;
    const Result<PlanFigures> figures = search_.FiguresOf(setup, plan, workload);
    if (!figures) return std::nullopt;
    return batch * workload.mean_gen_tokens() / figures->throughput;
  }

  // As many at a time, one round after the other; in the last one are those that are left.
  std::optional<double> SecondsOfAll(const RankSetup& setup, const plan::Plan& plan, int batch) {
    const int all = search_.question().workload.num_requests;
    const std::optional<double> round = SecondsOf(setup, plan, batch);
    if (!round) return std::nullopt;
    const int num_full = all / batch;
    const double rounds = *round * num_full;
    const int left = all % batch;
    if (left == 0) return rounds;
    const std::optional<double> last = SecondsOf(setup, plan, left);
    return last ? std::optional(rounds + *last) : std::nullopt;
  }

  PlanSearch& search_;
  std::vector<Candidate> plans_;
};

}  // namespace

std::string BatchOfRequests::Describe(int num_requests) const {
  std::string text = fmt::format("{} of {} run together", FormatCount(static_cast<uint64_t>(batch)),
                                 FormatCount(static_cast<uint64_t>(num_requests), "request"));
  double chosen = 0;
  for (const TriedBatch& one : tried) {
    if (one.batch == batch) chosen = one.seconds;
  }
  std::vector<std::string> others;
  for (const TriedBatch& one : tried) {
    if (one.batch == batch) continue;
    const std::string count = FormatCount(static_cast<uint64_t>(one.batch));
    const double percent = 100 * (one.seconds / chosen - 1);
    others.push_back(one.seconds == 0
                         ? fmt::format("for {} there is no memory", count)
                         : fmt::format("{} would take {:.1f} % {}", count, std::abs(percent),
                                       percent < 0 ? "less" : "longer"));
  }
  return others.empty() ? text : fmt::format("{}; {}", text, fmt::join(others, ", "));
}

Result<BatchOfRequests> ChooseBatch(const PlanQuestion& question) {
  Workload workload = question.workload;
  const int all = workload.num_requests;
  workload.batch = std::min(workload.batch, all);
  if (question.constraints.keeps_step_tokens) {
    workload.batch = std::min(workload.batch, question.step_tokens);
  }
  const PlanQuestion asked = WithWorkload(question, workload);
  std::optional<PlanSearch> search;
  Result<PlanAnswer> answer = SearchPlan(search.emplace(asked));
  // So many have no room: fewer.
  while (!answer && workload.batch > 1) {
    workload.batch /= 2;
    answer = SearchPlan(search.emplace(asked));
  }
  if (!answer) return answer.error();
  Chooser chooser(*search, *answer);
  BatchOfRequests chosen;
  double least = std::numeric_limits<double>::infinity();
  const int most_by_steps = question.constraints.keeps_step_tokens
                                ? chooser.MostWith(question.step_tokens)
                                : plan::kMostStepTokens;
  for (const int batch : NumbersToTry(workload.batch, all, most_by_steps)) {
    const std::optional<double> seconds = chooser.SecondsWith(batch);
    chosen.tried.push_back({.batch = batch, .seconds = seconds.value_or(0)});
    least = std::min(least, seconds.value_or(least));
  }
  chosen.batch = workload.batch;
  for (const TriedBatch& one : chosen.tried) {
    if (one.seconds == 0 || one.seconds > kLeastGain * least) continue;
    chosen.batch = one.batch;
    break;
  }
  return chosen;
}

}  // namespace convene::planner
