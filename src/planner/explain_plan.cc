#include "planner/explain_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/plain_number.h"
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
  kSolver,
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
                                         "the solver"};

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
      return kHead;
    default:
      return kRest;
  }
}

std::array<double, kNumSections> SectionSeconds(const PlanFigures& figures) {
  const cost::KindSeconds& path = figures.path;
  std::array<double, kNumSections> seconds = {};
  seconds[kSolver] = figures.scored_solver_seconds;
  for (size_t kind = 0; kind < path.size(); ++kind) {
    seconds[SectionOf(static_cast<TaskKind>(kind))] += path[kind];
  }
  return seconds;
}

// Of those that would need --allow: they are often faster, and not what was asked for.
constexpr int kMostNotAllowed = 2;

// The best of each setup and layout, and of the chosen one the best other form.
std::vector<int> AlternativesOf(const PlanAnswer& answer, size_t most) {
  std::vector<int> found;
  std::vector<std::pair<RankSetup, std::string>> seen;
  bool has_same = false;
  int num_not_allowed = 0;
  const Candidate& chosen = answer.candidates[answer.chosen];
  const auto key = [](const Candidate& one) {
    return std::pair(one.setup, plan::ToText(one.plan.layout));
  };
  for (int i = 0; i < std::ssize(answer.candidates) && found.size() < most; ++i) {
    const Candidate& candidate = answer.candidates[i];
    if (i == answer.chosen || !candidate.is_ranked()) continue;
    if (key(candidate) == key(chosen)) {
      if (!std::exchange(has_same, true)) found.push_back(i);
      continue;
    }
    if (std::find(seen.begin(), seen.end(), key(candidate)) != seen.end()) continue;
    if (!candidate.is_allowed() && ++num_not_allowed > kMostNotAllowed) continue;
    seen.push_back(key(candidate));
    found.push_back(i);
  }
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

Flip FlipOf(PlanSearch& search, const PlanAnswer& answer, const std::vector<int>& others,
            const Axis& axis) {
  Flip flip{.figure = axis.figure};
  const Candidate& chosen = answer.candidates[answer.chosen];
  Parameter parameter;
  AddPowers(1.0 / 16, 16, 1, parameter);
  parameter.at = [&](double factor) {
    return Point{.workload = search.question().workload, .conditions = axis.slower(factor)};
  };
  for (const int other : others) {
    const Candidate& candidate = answer.candidates[other];
    if (!candidate.is_allowed()) continue;
    // Already better by prediction, and passed over since that is not certain.
    if (candidate.figures->score < chosen.figures->score) continue;
    Duel duel(search, chosen, candidate);
    for (const int direction : {1, -1}) {
      const auto outcome_at = [&](double value) { return duel.At(parameter.at(value)); };
      const std::vector<Span> spans = SpansOf(parameter, direction, outcome_at, 1);
      if (spans.empty() || spans.front().outcome != Outcome::kWins) continue;
      const double factor = 1 / spans.front().nearest;
      const bool is_nearer =
          flip.candidate < 0 || std::abs(std::log(factor)) < std::abs(std::log(flip.factor));
      if (!is_nearer) continue;
      flip.factor = factor;
      flip.candidate = other;
    }
  }
  if (flip.candidate < 0) {
    flip.words = fmt::format("{}: no speed from a sixteenth to 16 times as much changes the choice",
                             axis.figure);
    return flip;
  }
  flip.rate = search.question().source.FiguresOf(chosen.setup).*axis.rate * flip.factor;
  flip.words = fmt::format(
      "{}: at {:.3g} times its speed{} the choice would be {}", axis.figure, flip.factor,
      flip.rate > 0 ? fmt::format(" ({} G{})", PlainNumber(flip.rate / 1e9, 3), axis.unit) : "",
      Describe(answer.candidates[flip.candidate]));
  return flip;
}

// --- Regret over batch.

void AddCurves(PlanSearch& search, const PlanAnswer& answer, const std::vector<int>& others,
               Explanation& explanation) {
  const PlanQuestion& question = search.question();
  if (question.workload.arrival_rate > 0) return;
  const Parameter batches = Batches(question);
  for (const double batch : batches.values) explanation.batches.push_back(static_cast<int>(batch));
  std::vector<int> shown = {answer.chosen};
  shown.insert(shown.end(), others.begin(), others.end());
  for (const int candidate : shown) explanation.curves.push_back({.candidate = candidate});
  for (const double batch : batches.values) {
    double best = 0;
    for (RegretCurve& curve : explanation.curves) {
      const Candidate& candidate = answer.candidates[curve.candidate];
      const auto memory =
          question.memory_of(candidate.setup, candidate.plan, static_cast<int>(batch));
      double score = -1;
      if (memory && memory->total() <= candidate.memory_limit) {
        const auto figures =
            search.FiguresOf(candidate.setup, candidate.plan, batches.at(batch).workload);
        if (figures) score = figures->score;
      }
      curve.regret.push_back(score);
      if (score > 0 && (best == 0 || score < best)) best = score;
    }
    for (RegretCurve& curve : explanation.curves) {
      if (curve.regret.back() > 0) curve.regret.back() = curve.regret.back() / best - 1;
    }
  }
}

}  // namespace

std::string WhySlower(const PlanFigures& slower, const PlanFigures& faster) {
  const auto more = SectionSeconds(slower);
  const auto less = SectionSeconds(faster);
  std::vector<std::pair<double, Section>> differences;
  for (int section = 0; section < kNumSections; ++section) {
    differences.emplace_back(more[section] - less[section], static_cast<Section>(section));
  }
  std::sort(differences.begin(), differences.end(),
            [](const auto& a, const auto& b) { return std::abs(a.first) > std::abs(b.first); });
  std::vector<std::string> parts;
  for (const auto& [seconds, section] : differences) {
    // What is less than a hundredth of the whole explains nothing.
    if (std::abs(seconds) < 0.01 * faster.score) continue;
    std::string part =
        fmt::format("{} {:+.1f} %", kSectionNames[section], 100 * seconds / faster.score);
    if (section == kExperts && slower.imbalance > 1.05) {
      part += fmt::format(" (imbalance {:.2f})", slower.imbalance);
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
  const std::vector<int> others = AlternativesOf(answer, most);
  const std::vector<Parameter> parameters = ParametersOf(search.question());
  for (const int other : others) {
    const Candidate& candidate = answer.candidates[other];
    Alternative alternative{.candidate = other,
                            .slower = candidate.figures->score / chosen.figures->score - 1};
    alternative.reason = WhySlower(*candidate.figures, *chosen.figures);
    if (!candidate.is_allowed()) {
      alternative.reason +=
          fmt::format("; changes what is computed (--allow {})", fmt::join(candidate.needs, ","));
    }
    alternative.would_win = alternative.slower < 0
                                ? "is predicted to be faster here"
                                : WhereItWins(search, chosen, candidate, parameters);
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
    explanation.flips.push_back(FlipOf(search, answer, others, axis));
  }
  AddCurves(search, answer, others, explanation);
  explanation.seconds = search.question().clock() - start;
  return explanation;
}

}  // namespace convene::planner
