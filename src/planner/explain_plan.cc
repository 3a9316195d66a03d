#include "planner/explain_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "base/units.h"

namespace convene::planner {
namespace {

using schedule::TaskKind;

constexpr double kMostFactor = 64;  // of links and of the machine's figures
constexpr int kMostBatch = 1024;
constexpr int kLeastPrompt = 16;
constexpr int kMostPrompt = 1 << 17;
constexpr std::array kSkews = {0.0, 0.2, 0.4, 0.6, 0.8, 0.9};

enum Section { kAttention, kExperts, kExchanges, kTransition, kDisk, kHead, kRest, kNumSections };
constexpr const char* kSectionNames[] = {"attention",
                                         "experts",
                                         "exchanges",
                                         "transition",
                                         "reading experts from the disk",
                                         "head",
                                         "norms, routers and dense layers"};

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
    case TaskKind::kReadKv:
    case TaskKind::kWriteKv:
      return kDisk;
    case TaskKind::kHead:
      return kHead;
    default:
      return kRest;
  }
}

std::array<double, kNumSections> SectionSeconds(const cost::KindSeconds& path) {
  std::array<double, kNumSections> seconds = {};
  for (size_t kind = 0; kind < path.size(); ++kind) {
    seconds[SectionOf(static_cast<TaskKind>(kind))] += path[kind];
  }
  return seconds;
}

// A workload with another value of one parameter, or a machine under other conditions.
struct Point {
  Workload workload;
  Conditions conditions = {};
};

// Something that can be moved: values in order, of which one is that of the question.
struct Parameter {
  std::vector<double> values = {};
  size_t present = 0;
  bool is_whole = false;  // values between two are whole numbers
  std::function<Point(double)> at = {};
  std::function<std::string(double, bool above)> words = {};  // where something holds from there on
  std::string range = {};                                     // "batches of 1 to 1,024"
};

// Two plans at a point: how much less the second takes than the first; none: one cannot run there.
class Duel {
 public:
  Duel(PlanSearch& search, const Candidate& chosen, const Candidate& other)
      : search_(search), chosen_(chosen), other_(other) {}

  std::optional<bool> OtherWins(const Point& point) {
    const auto first = ScoreOf(chosen_, point);
    const auto second = ScoreOf(other_, point);
    if (!first || !second) return std::nullopt;
    return *second < *first;
  }

 private:
  std::optional<double> ScoreOf(const Candidate& candidate, const Point& point) {
    const PlanQuestion& question = search_.question();
    if (point.workload.batch > question.workload.batch ||
        point.workload.mean_prompt_tokens() > question.workload.mean_prompt_tokens()) {
      // Memory for more is asked for the workload as it is, with as many more sequences as hold the
      // tokens.
      const double tokens = point.workload.batch * (point.workload.mean_prompt_tokens() +
                                                    point.workload.mean_gen_tokens());
      const double each =
          question.workload.mean_prompt_tokens() + question.workload.mean_gen_tokens();
      const auto batch = static_cast<int>(std::min(1e6, std::ceil(tokens / each)));
      const auto memory = question.memory_of(candidate.setup, candidate.plan, batch);
      if (!memory || memory->total() > candidate.memory_limit) return std::nullopt;
    }
    const auto figures =
        search_.FiguresOf(candidate.setup, candidate.plan, point.workload, point.conditions);
    if (!figures) return std::nullopt;
    return figures->score;
  }

  PlanSearch& search_;
  const Candidate& chosen_;
  const Candidate& other_;
};

// The nearest value in one direction from which on the other plan wins; none: nowhere.
std::optional<double> WinsFrom(Duel& duel, const Parameter& parameter, int direction) {
  const auto size = static_cast<int>(parameter.values.size());
  double last = parameter.values[parameter.present];
  for (int i = static_cast<int>(parameter.present) + direction; i >= 0 && i < size;
       i += direction) {
    const double value = parameter.values[i];
    const std::optional<bool> wins = duel.OtherWins(parameter.at(value));
    if (!wins) return std::nullopt;  // memory, or limits: beyond it there is nothing either
    if (!*wins) {
      last = value;
      continue;
    }
    double loses = last;
    double winning = value;
    for (int turn = 0; turn < 12; ++turn) {
      if (parameter.is_whole && std::abs(winning - loses) <= 1) break;
      if (!parameter.is_whole && std::abs(winning - loses) < 0.02 * std::abs(winning)) break;
      double middle = (loses + winning) / 2;
      if (parameter.is_whole) middle = std::floor(middle);
      const std::optional<bool> there = duel.OtherWins(parameter.at(middle));
      if (!there) break;
      (*there ? winning : loses) = middle;
    }
    return winning;
  }
  return std::nullopt;
}

// Powers of two between, with the present value among them.
void AddPowers(double least, double most, double present, Parameter& parameter) {
  for (double value = least; value <= most; value *= 2) parameter.values.push_back(value);
  parameter.values.push_back(present);
  std::sort(parameter.values.begin(), parameter.values.end());
  parameter.values.erase(std::unique(parameter.values.begin(), parameter.values.end()),
                         parameter.values.end());
  parameter.present = std::find(parameter.values.begin(), parameter.values.end(), present) -
                      parameter.values.begin();
}

std::string Count(double value) { return FormatCount(static_cast<uint64_t>(std::llround(value))); }

Parameter Batches(const PlanQuestion& question) {
  Parameter batch{.is_whole = true};
  AddPowers(1, std::min(kMostBatch, question.step_tokens), question.workload.batch, batch);
  batch.at = [&question](double value) {
    Point point{.workload = question.workload};
    point.workload.batch = static_cast<int>(value);
    return point;
  };
  batch.words = [](double value, bool above) {
    return fmt::format("with batches of {} and {}", Count(value), above ? "more" : "fewer");
  };
  batch.range = fmt::format("batches of 1 to {}", Count(batch.values.back()));
  return batch;
}

Parameter Prompts(const PlanQuestion& question) {
  Parameter prompt{.is_whole = true};
  const int present = static_cast<int>(question.workload.mean_prompt_tokens());
  const int most = std::min<int>(
      kMostPrompt, question.spec.max_positions - question.workload.longest_request() + present);
  AddPowers(kLeastPrompt, most, present, prompt);
  prompt.at = [&question, present](double value) {
    Point point{.workload = question.workload};
    for (RequestLengths& request : point.workload.requests) {
      request.prompt_tokens =
          std::max(1, static_cast<int>(std::lround(request.prompt_tokens * value / present)));
    }
    return point;
  };
  prompt.words = [](double value, bool above) {
    return fmt::format("with prompts of {} tokens and {}", Count(value), above ? "more" : "fewer");
  };
  prompt.range = fmt::format("prompts of {} to {} tokens", Count(prompt.values.front()),
                             Count(prompt.values.back()));
  return prompt;
}

// By the time that bytes take: words are about the rate.
Parameter Links(const PlanQuestion& question) {
  Parameter link;
  AddPowers(1 / kMostFactor, kMostFactor, 1, link);
  link.at = [&question](double value) {
    return Point{.workload = question.workload, .conditions = {.link = value}};
  };
  link.words = [](double value, bool above) {
    return above ? fmt::format("on a link {:.3g} times as slow and slower", value)
                 : fmt::format("on a link {:.3g} times as fast and faster", 1 / value);
  };
  link.range =
      fmt::format("links from {0:.0f} times as slow to {0:.0f} times as fast", kMostFactor);
  return link;
}

// How many experts are preferred where nobody has said it: an eighth.
std::optional<Parameter> Skews(const PlanQuestion& question) {
  if (!question.workload.routing.counts.empty()) return std::nullopt;
  const auto layer = std::find_if(question.spec.layers.begin(), question.spec.layers.end(),
                                  [](const auto& one) { return one.moe.has_value(); });
  if (layer == question.spec.layers.end()) return std::nullopt;
  const model::MoeSpec& moe = *layer->moe;
  const Routing& routing = question.workload.routing;
  const int experts =
      routing.skew >= 0 ? routing.num_experts_skew : std::max(moe.top_k, moe.num_experts / 8);
  if (experts < moe.top_k || experts >= moe.num_experts) return std::nullopt;
  const double even = static_cast<double>(experts) / moe.num_experts;
  Parameter skew;
  for (const double value : kSkews) {
    if (value > even) skew.values.push_back(value);
  }
  const double present = routing.skew >= 0 ? routing.skew : even;
  skew.values.push_back(present);
  std::sort(skew.values.begin(), skew.values.end());
  skew.values.erase(std::unique(skew.values.begin(), skew.values.end()), skew.values.end());
  skew.present = std::find(skew.values.begin(), skew.values.end(), present) - skew.values.begin();
  skew.at = [&question, experts](double value) {
    Point point{.workload = question.workload};
    point.workload.routing.skew = value;
    point.workload.routing.num_experts_skew = experts;
    return point;
  };
  skew.words = [experts](double value, bool above) {
    return fmt::format("where {:.0f} % of the tokens and {} go to {} of the experts", 100 * value,
                       above ? "more" : "fewer", experts);
  };
  skew.range = fmt::format("a share of {:.0f} to {:.0f} % for {} experts",
                           100 * skew.values.front(), 100 * skew.values.back(), experts);
  return skew;
}

std::vector<Parameter> ParametersOf(const PlanQuestion& question) {
  std::vector<Parameter> parameters;
  if (question.workload.arrival_rate <= 0) parameters.push_back(Batches(question));
  parameters.push_back(Prompts(question));
  if (question.num_ranks > 1) parameters.push_back(Links(question));
  if (auto skew = Skews(question)) parameters.push_back(*std::move(skew));
  return parameters;
}

std::string WhereItWins(PlanSearch& search, const Candidate& chosen, const Candidate& other,
                        const std::vector<Parameter>& parameters) {
  Duel duel(search, chosen, other);
  std::vector<std::string> places;
  std::vector<std::string> ranges;
  for (const Parameter& parameter : parameters) {
    for (const int direction : {1, -1}) {
      const std::optional<double> from = WinsFrom(duel, parameter, direction);
      if (from) places.push_back(parameter.words(*from, direction > 0));
    }
    ranges.push_back(parameter.range);
  }
  if (!places.empty()) return fmt::format("wins {}", fmt::join(places, "; "));
  return fmt::format("wins nowhere in {}, as far as memory goes", fmt::join(ranges, ", "));
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
      const std::optional<double> slower = WinsFrom(duel, parameter, direction);
      if (!slower) continue;
      const double factor = 1 / *slower;
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
      flip.rate > 0 ? fmt::format(" ({:.3g} G{})", flip.rate / 1e9, axis.unit) : "",
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
  const auto more = SectionSeconds(slower.path);
  const auto less = SectionSeconds(faster.path);
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
