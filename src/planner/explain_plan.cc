#include "planner/explain_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/plain_number.h"
#include "planner/plan_system.h"
#include "planner/where_plan_wins.h"

namespace convene::planner {
namespace {

using schedule::TaskKind;

enum Section {
  kAttention,
  kExperts,
  kExchanges,
  kTransition,
  kDisk,
  kKvDisk,
  kHead,
  kRest,
  kWaiting,
  kNumSections
};
constexpr const char* kSectionNames[] = {"attention",
                                         "experts",
                                         "exchanges",
                                         "transition",
                                         "reading experts from the disk",
                                         "keys and values from the disk and to it",
                                         "head",
                                         "norms, routers and dense layers",
                                         "waiting for other requests"};

Section SectionOf(TaskKind kind) {
  if (kind == TaskKind::kMoveExperts || kind == TaskKind::kLoadExperts) return kTransition;
  if (IsCollective(kind)) return kExchanges;
  switch (kind) {
    case TaskKind::kProject:
    case TaskKind::kAttention:
    case TaskKind::kPreAttention:
    case TaskKind::kAttend:
    case TaskKind::kPostAttention:
    case TaskKind::kNormalize:
    case TaskKind::kAddPartials:
      return kAttention;
    case TaskKind::kExperts:
    case TaskKind::kReduce:
    case TaskKind::kShared:
      return kExperts;
    case TaskKind::kReadPages:
    case TaskKind::kReadChosen:
    case TaskKind::kReadPredicted:
    case TaskKind::kReadNext:
      return kDisk;
    case TaskKind::kReadKv:
    case TaskKind::kWriteKv:
      return kKvDisk;
    case TaskKind::kHead:
    case TaskKind::kJoinLogits:
      return kHead;
    default:
      return kRest;
  }
}

std::array<double, kNumSections> SectionSeconds(const PlanFigures& figures) {
  const cost::KindSeconds& path = figures.path;
  std::array<double, kNumSections> seconds = {};
  for (size_t kind = 0; kind < path.size(); ++kind) {
    seconds[SectionOf(static_cast<TaskKind>(kind))] += path[kind];
  }
  seconds[kWaiting] = figures.waiting_seconds;
  return seconds;
}

constexpr size_t kMostOfManyRanks = 4;
// Of those that would need --allow: they are often faster, and not what was asked for.
constexpr int kMostNotAllowed = 2;
// Of the busiest rank over the mean: less explains nothing.
constexpr double kToldImbalance = 1.05;
// What differs from the chosen plan in its parts alone, and by no more than this, tells nothing.
constexpr double kCopy = 0.002;

// Of each system but that of the chosen plan the best with weights as there, one that may be chosen
// before others. In the order of the answer.
std::vector<int> BestOfSystems(const PlanAnswer& answer) {
  const Candidate& chosen = answer.candidates[answer.chosen];
  std::array<int, kNumPlanSystems> best;
  best.fill(-1);
  for (int i = 0; i < std::ssize(answer.candidates); ++i) {
    const Candidate& one = answer.candidates[i];
    if (!one.is_ranked() || one.setup.weights != chosen.setup.weights) continue;
    int& of_system = best[static_cast<size_t>(SystemOf(one))];
    const bool is_better =
        of_system < 0 || (one.is_allowed() && !answer.candidates[of_system].is_allowed());
    if (is_better) of_system = i;
  }
  best[static_cast<size_t>(SystemOf(chosen))] = -1;
  std::vector<int> found;
  std::ranges::copy_if(best, std::back_inserter(found), [](int i) { return i >= 0; });
  std::ranges::sort(found);
  return found;
}

// How the work is divided, in both phases: all that tells plans apart but for their parts of steps,
// their rows between ranks and how experts move.
std::tuple<RankSetup, std::string, std::string> DivisionOf(const Candidate& one) {
  return {one.setup, plan::ToText(one.plan.layout),
          one.plan.decode ? plan::ExpertsText(*one.plan.decode) : ""};
}

// The best of each system, then of each setup and division, and of the chosen one the best other
// form.
std::vector<int> AlternativesOf(const PlanAnswer& answer, size_t most) {
  std::vector<int> found = BestOfSystems(answer);
  const Candidate& chosen = answer.candidates[answer.chosen];
  if (found.size() > most) found.resize(most);
  std::set<decltype(DivisionOf(chosen))> seen;
  for (const int i : found) seen.insert(DivisionOf(answer.candidates[i]));
  bool has_same = seen.contains(DivisionOf(chosen));
  int num_not_allowed = 0;
  for (int i = 0; i < std::ssize(answer.candidates) && found.size() < most; ++i) {
    const Candidate& candidate = answer.candidates[i];
    if (i == answer.chosen || !candidate.is_ranked()) continue;
    if (DivisionOf(candidate) == DivisionOf(chosen)) {
      const bool is_copy = std::abs(candidate.figures->score / chosen.figures->score - 1) < kCopy;
      if (!is_copy && !std::exchange(has_same, true)) found.push_back(i);
      continue;
    }
    if (seen.contains(DivisionOf(candidate))) continue;
    if (!candidate.is_allowed() && ++num_not_allowed > kMostNotAllowed) continue;
    seen.insert(DivisionOf(candidate));
    found.push_back(i);
  }
  std::ranges::sort(found);
  return found;
}

// --- Which figure would flip the choice.

struct Axis {
  const char* figure;
  Conditions (*slower)(double factor);
  double MachineFigures::*rate;
  const char* unit;
};
constexpr Axis kAxes[] = {
    {"memory", [](double factor) { return Conditions{.machine = {.memory = factor}}; },
     &MachineFigures::memory_bytes_per_second, "B/s"},
    {"cores", [](double factor) { return Conditions{.machine = {.compute = factor}}; },
     &MachineFigures::operations_per_second, "op/s"},
    {"link", [](double factor) { return Conditions{.link = factor}; },
     &MachineFigures::link_bytes_per_second, "B/s"},
    {"disk", [](double factor) { return Conditions{.disk = factor}; },
     &MachineFigures::disk_bytes_per_second, "B/s"},
};

constexpr double kMostFlip = 16;
// Of many ranks each price takes its time: so many of the best plans are looked at.
constexpr size_t kMostToFlip = 12;
constexpr double kFlipAccuracy = 1.02;
// A plan that cannot come nearer to the fastest one is not chosen, however simple it is.
constexpr double kFarBehind = 1.25;

// What becomes of the choice among the plans that the search priced where one rate of the machine
// is another one.
class FlipSearch {
 public:
  // Keeps the references.
  FlipSearch(PlanSearch& search, const PlanAnswer& answer, const Axis& axis)
      : search_(search), answer_(answer), axis_(axis), known_(answer.candidates.size()) {
    const bool are_many = search.question().num_ranks > kFewRanks;
    for (int i = 0; i < std::ssize(answer.candidates); ++i) {
      const Candidate& one = answer.candidates[i];
      if (!one.is_ranked() || !one.is_allowed()) continue;
      // The best come first.
      if (are_many && able_.size() >= kMostToFlip && i != answer.chosen) continue;
      able_.push_back(i);
      known_[i][1] = one.figures->score;
    }
    // A setup's pricer is made once; what is fast to begin with spares others.
    const RankSetup& first = answer.candidates[answer.fastest].setup;
    const auto key = [&](int i) {
      const RankSetup& setup = answer.candidates[i].setup;
      return std::tuple(setup != first, setup, i);
    };
    std::ranges::sort(able_, [&](int a, int b) { return key(a) < key(b); });
  }

  Flip Find() {
    Flip flip{.figure = axis_.figure};
    for (double by = 2; by <= kMostFlip && flip.candidate < 0; by *= 2) {
      for (const bool is_faster : {true, false}) {
        Flip found{.figure = "", .factor = is_faster ? by : 1 / by};
        found.candidate = ChoiceAt(found.factor);
        if (!IsOther(found.candidate)) continue;
        Narrow(is_faster ? by / 2 : 2 / by, found);
        const bool is_nearer = flip.candidate < 0 ||
                               std::abs(std::log(found.factor)) < std::abs(std::log(flip.factor));
        if (!is_nearer) continue;
        flip.factor = found.factor;
        flip.candidate = found.candidate;
      }
    }
    return flip;
  }

 private:
  bool IsOther(int choice) const { return choice >= 0 && choice != answer_.chosen; }

  // The factor nearest to 1 between one at which the choice stays and one at which it does not.
  void Narrow(double stays, Flip& flip) {
    while (std::max(stays / flip.factor, flip.factor / stays) > kFlipAccuracy) {
      const double middle = std::sqrt(stays * flip.factor);
      const int choice = ChoiceAt(middle);
      if (IsOther(choice)) {
        flip.factor = middle;
        flip.candidate = choice;
      } else {
        stays = middle;
      }
    }
  }

  // Where the rate is `factor` times as high; -1: none has a price there.
  int ChoiceAt(double factor) {
    const double slowness = 1 / factor;
    std::vector<std::pair<Candidate, int>> priced;
    double least = std::numeric_limits<double>::infinity();
    for (const int i : able_) {
      if (LeastScore(i, slowness) > kFarBehind * least) continue;
      Candidate one = answer_.candidates[i];
      PlanThere there =
          PriceAt(search_, one,
                  {.workload = search_.question().workload, .conditions = axis_.slower(slowness)});
      if (!there.figures) continue;
      known_[i][slowness] = there.figures->score;
      least = std::min(least, there.figures->score);
      one.figures = there.figures;
      priced.emplace_back(std::move(one), i);
    }
    if (priced.empty()) return -1;
    // Equal ones stay in the order of the answer.
    std::ranges::sort(priced, [](const auto& a, const auto& b) {
      return std::pair(a.first.figures->score, a.second) <
             std::pair(b.first.figures->score, b.second);
    });
    std::vector<const Candidate*> sorted;
    for (const auto& [one, i] : priced) sorted.push_back(&one);
    const Candidate& choice = ChoiceOf(search_, sorted);
    return priced[std::ranges::find(sorted, &choice) - sorted.begin()].second;
  }

  // The longest path through a schedule is a convex function of the seconds of its tasks, and so of
  // how slow one rate is: beyond two points it lies above their line. Where requests arrive at a
  // rate they wait in queues, which grow faster than that.
  double LeastScore(int candidate, double slowness) const {
    const std::map<double, double>& known = known_[candidate];
    const bool is_stream = search_.question().workload.arrival_rate > 0;
    double least = 0;
    const auto beyond = [&](const auto& far, const auto& near) {
      const double slope = (far.second - near.second) / (far.first - near.first);
      least = std::max(least, near.second + slope * (slowness - near.first));
    };
    const auto above = known.lower_bound(slowness);
    if (above != known.begin()) {
      const auto near = std::prev(above);
      least = std::max(least, near->second);  // slower is not faster
      if (is_stream) return least;
      if (near != known.begin()) beyond(*std::prev(near), *near);
    }
    if (above != known.end() && !is_stream) {
      least = std::max(least, above->second * slowness / above->first);
      if (std::next(above) != known.end()) beyond(*std::next(above), *above);
    }
    return least;
  }

  PlanSearch& search_;
  const PlanAnswer& answer_;
  const Axis& axis_;
  std::vector<int> able_;                        // to be chosen
  std::vector<std::map<double, double>> known_;  // by candidate, scores by slowness
};

Flip FlipOf(PlanSearch& search, const PlanAnswer& answer, const Axis& axis) {
  Flip flip = FlipSearch(search, answer, axis).Find();
  if (flip.candidate < 0) {
    flip.words = fmt::format(
        "{}: at none of the speeds tried, a sixteenth to 16 times as much, the choice would be "
        "another of the plans priced",
        axis.figure);
    return flip;
  }
  const RankSetup& setup = answer.candidates[answer.chosen].setup;
  const bool is_link = axis.rate == &MachineFigures::link_bytes_per_second;
  flip.rate = search.question().source.FiguresOf(setup).*axis.rate * flip.factor;
  flip.words =
      fmt::format("{}: at {:.3g} times its speed{} the choice of the plans priced would be {}",
                  axis.figure, flip.factor,
                  flip.rate > 0 ? fmt::format(" ({} G{}{})", PlainNumber(flip.rate / 1e9, 3),
                                              axis.unit, is_link ? " of all ranks together" : "")
                                : "",
                  Describe(answer.candidates[flip.candidate]));
  return flip;
}

// --- Regret over batch.

// Plans that may be best at other batches and are not shown: the fastest of each setup and division
// with parts of steps, and of each without.
constexpr size_t kMostRivals = 16;
constexpr size_t kMostRivalsOfManyRanks = 4;

std::vector<int> RivalsOf(const PlanSearch& search, const PlanAnswer& answer,
                          const std::vector<int>& shown) {
  const size_t most =
      search.question().num_ranks > kFewRanks ? kMostRivalsOfManyRanks : kMostRivals;
  const auto key = [](const Candidate& one) {
    const strategy::Pipeline& pipeline = one.plan.pipeline;
    const bool is_whole = pipeline.micro_batches == 1 && pipeline.chunks == 1;
    return std::pair(DivisionOf(one), is_whole);
  };
  std::set<decltype(key(answer.candidates.front()))> seen;
  for (const int i : shown) seen.insert(key(answer.candidates[i]));
  std::vector<int> rivals;
  for (int i = 0; i < std::ssize(answer.candidates) && rivals.size() < most; ++i) {
    const Candidate& one = answer.candidates[i];
    if (!one.is_ranked() || !one.is_allowed()) continue;
    if (seen.insert(key(one)).second) rivals.push_back(i);
  }
  return rivals;
}

void AddCurves(PlanSearch& search, const PlanAnswer& answer, const std::vector<int>& others,
               Explanation& explanation) {
  const PlanQuestion& question = search.question();
  if (question.workload.arrival_rate > 0) return;
  const Parameter batches = Batches(question);
  for (const double batch : batches.values) explanation.batches.push_back(static_cast<int>(batch));
  std::vector<int> shown = {answer.chosen};
  // Nothing is lost to a plan that may not be chosen.
  std::ranges::copy_if(others, std::back_inserter(shown),
                       [&](int other) { return answer.candidates[other].is_allowed(); });
  for (const int candidate : shown) explanation.curves.push_back({.candidate = candidate});
  const std::vector<int> rivals = RivalsOf(search, answer, shown);
  for (const double batch : batches.values) {
    double best = 0;
    int best_candidate = -1;
    const auto score_of = [&](int index) -> double {
      const PlanThere there = PriceAt(search, answer.candidates[index], batches.at(batch));
      if (!there.figures) return -1;
      if (best_candidate < 0 || there.figures->score < best) {
        best = there.figures->score;
        best_candidate = index;
      }
      return there.figures->score;
    };
    for (RegretCurve& curve : explanation.curves) {
      curve.regret.push_back(score_of(curve.candidate));
    }
    for (const int rival : rivals) score_of(rival);
    for (RegretCurve& curve : explanation.curves) {
      if (curve.regret.back() > 0) curve.regret.back() = curve.regret.back() / best - 1;
    }
    explanation.best.push_back(best_candidate);
  }
}

}  // namespace

std::string WhySlower(const PlanFigures& other, const PlanFigures& chosen) {
  const auto more = SectionSeconds(other);
  const auto less = SectionSeconds(chosen);
  std::vector<std::pair<double, Section>> differences;
  for (int section = 0; section < kNumSections; ++section) {
    differences.emplace_back(more[section] - less[section], static_cast<Section>(section));
  }
  std::sort(differences.begin(), differences.end(),
            [](const auto& a, const auto& b) { return std::abs(a.first) > std::abs(b.first); });
  std::vector<std::string> parts;
  for (const auto& [seconds, section] : differences) {
    // What is less than a hundredth of the whole explains nothing.
    if (std::abs(seconds) < 0.01 * chosen.score) continue;
    std::string part =
        fmt::format("{} {:+.1f} %", kSectionNames[section], 100 * seconds / chosen.score);
    // Of the plan whose experts take longer: that the other one has more of it explains nothing.
    const auto& [longer, shorter] = seconds > 0 ? std::tie(other, chosen) : std::tie(chosen, other);
    if (section == kExperts && longer.imbalance > std::max(kToldImbalance, shorter.imbalance)) {
      part += fmt::format(" (imbalance {:.2f}{})", longer.imbalance,
                          seconds > 0 ? "" : " of the chosen plan");
    }
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return "hardly any difference";
  return fmt::format("{}", fmt::join(parts, ", "));
}

Explanation ExplainPlan(PlanSearch& search, const PlanAnswer& answer, size_t most) {
  const double start = search.question().clock();
  Explanation explanation;
  const Candidate& chosen = answer.candidates[answer.chosen];
  // Of many ranks each price takes its time.
  if (search.question().num_ranks > kFewRanks) most = std::min(most, kMostOfManyRanks);
  const std::vector<int> others = AlternativesOf(answer, most);
  PlanAtPoints at_chosen(search, chosen);
  const std::vector<Parameter> parameters = ParametersOf(search.question());
  for (const int other : others) {
    const Candidate& candidate = answer.candidates[other];
    Alternative alternative{.candidate = other,
                            .slower = candidate.figures->score / chosen.figures->score - 1};
    alternative.reason = WhySlower(*candidate.figures, *chosen.figures);
    if (candidate.plan.layout.stages > 1 && alternative.slower > 0) {
      alternative.reason += ", while ranks wait for each other's layers, too";
    }
    if (!candidate.is_allowed()) {
      alternative.reason +=
          fmt::format("; changes what is computed (--allow {})", fmt::join(candidate.needs, ","));
    }
    PlanAtPoints at_other(search, candidate);
    alternative.would_win = WhereItWins(at_chosen, at_other, alternative.slower < 0, parameters);
    explanation.alternatives.push_back(std::move(alternative));
  }
  const auto reads_disk = [&](int i) {
    return answer.candidates[i].plan.experts_in_memory.has_value();
  };
  const bool any_reads = reads_disk(answer.chosen) || std::ranges::any_of(others, reads_disk);
  for (const Axis& axis : kAxes) {
    if (std::string_view(axis.figure) == "disk" && !any_reads) continue;
    if (std::string_view(axis.figure) == "link" && chosen.setup.num_ranks == 1 &&
        search.question().num_ranks == 1) {
      continue;
    }
    explanation.flips.push_back(FlipOf(search, answer, axis));
  }
  AddCurves(search, answer, others, explanation);
  explanation.seconds = search.question().clock() - start;
  return explanation;
}

}  // namespace convene::planner
