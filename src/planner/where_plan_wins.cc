#include "planner/where_plan_wins.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "cost/step_interval.h"
#include "planner/pipeline_passes.h"

namespace convene::planner {
namespace {

constexpr double kMostFactor = 64;  // of links
constexpr double kMostRateFactor = 16;
constexpr int kMostBatch = 1024;
constexpr int kLeastPrompt = 16;
constexpr int kMostPrompt = 1 << 17;
constexpr int kMostAnswer = 1 << 14;
constexpr int kMostHalvings = 20;
constexpr std::array kSkews = {0.0, 0.2, 0.4, 0.6, 0.8, 0.9};

// Memory for longer or shorter requests is asked for those of the question, with as many of them
// as hold the tokens.
bool HasMemory(const PlanQuestion& question, const Candidate& candidate, const Workload& workload,
               int num_sequences) {
  const auto tokens_of_each = [](const Workload& one) {
    return one.mean_prompt_tokens() + one.mean_gen_tokens();
  };
  const double alike = num_sequences * tokens_of_each(workload) / tokens_of_each(question.workload);
  const auto batch = static_cast<int>(std::min(1e6, std::ceil(alike - 1e-9)));
  // So many were asked for when it was priced, and without the pass `memory` nothing limits them.
  if (batch == candidate.figures->batch || candidate.memory_limit == 0) return true;
  const auto memory = question.memory_of(candidate.setup, candidate.plan, batch);
  return memory && memory->fits(candidate.memory_limit);
}

}  // namespace

PlanThere PriceAt(PlanSearch& search, const Candidate& candidate, const Point& point) {
  const Workload& workload = point.workload;
  using Figures = std::optional<PlanFigures>;
  const auto figures_of = [&](int cut_from_tokens) -> Figures {
    plan::Plan plan = candidate.plan;
    plan.cut_from_tokens = cut_from_tokens;
    Result<PlanFigures> figures =
        search.FiguresOf(candidate.setup, plan, workload, point.conditions);
    if (!figures) return std::nullopt;
    return *std::move(figures);
  };
  const auto better = [](const Figures& one, const Figures& other) {
    return other && (!one || other->score < one->score) ? other : one;
  };
  const auto fits = [&](int num_sequences) {
    return HasMemory(search.question(), candidate, workload, num_sequences);
  };
  // Of the question's own steps the search has said which way they are faster.
  const Workload& asked = search.question().workload;
  const bool is_elsewhere = workload.batch != asked.batch ||
                            workload.arrival_rate != asked.arrival_rate ||
                            workload.mean_prompt_tokens() != asked.mean_prompt_tokens() ||
                            workload.mean_gen_tokens() != asked.mean_gen_tokens();
  const bool is_either =
      is_elsewhere && MayLeaveDecodeWhole(candidate.plan) && workload.mean_gen_tokens() > 1;
  const bool is_batch_given =
      workload.arrival_rate <= 0 && workload.objective != Objective::kGoodput;
  PlanThere there;
  if (is_batch_given) {
    there.fits = fits(workload.batch);
    if (!there.fits) return there;
    there.figures = is_either ? better(figures_of(0), figures_of(WholeDecodeFrom(workload.batch)))
                              : figures_of(candidate.plan.cut_from_tokens);
    return there;
  }
  Figures figures = figures_of(is_either ? 0 : candidate.plan.cut_from_tokens);
  // As the pass does, which begins with the plan all of whose steps have parts.
  if (is_either && figures) {
    const int batch = figures->batch;
    figures = better(figures, figures_of(WholeDecodeFrom(batch)));
  } else if (candidate.plan.cut_from_tokens > 0 &&
             !(figures && figures->batch == candidate.figures->batch)) {
    const Figures in_parts = figures_of(0);
    if (in_parts) figures = figures_of(WholeDecodeFrom(in_parts->batch));
  }
  if (!figures) return there;
  there.fits = fits(figures->batch);
  if (there.fits) there.figures = figures;
  return there;
}

const PointScore& PlanAtPoints::At(const Parameter& parameter, double value) {
  const std::pair point(parameter.range, value);
  const auto known = known_.find(point);
  if (known != known_.end()) return known->second;
  const PlanThere there = PriceAt(search_, plan_, parameter.at(value));
  PointScore score{.fits = there.fits};
  if (there.figures) score.seconds = there.figures->score;
  return known_.emplace(point, score).first->second;
}

namespace {

// Where, between a value inside and one outside, the inside ends: its last value.
double EdgeOf(const Parameter& parameter, double inside, double outside,
              const std::function<bool(double)>& is_inside) {
  for (int turn = 0; turn < kMostHalvings; ++turn) {
    const double gap = std::abs(inside - outside);
    if (parameter.is_whole ? gap <= 1 : gap < 0.02 * std::abs(inside)) break;
    double middle = (inside + outside) / 2;
    if (parameter.is_whole) middle = std::floor(middle);
    (is_inside(middle) ? inside : outside) = middle;
  }
  return inside;
}

std::string Count(double value) { return FormatCount(static_cast<uint64_t>(std::llround(value))); }

// "4 and more", "4 and fewer", "4 to 7", "4"; `word` of a value.
std::string SpanWords(const Span& span, bool above,
                      const std::function<std::string(double)>& word) {
  const bool is_least = !above && span.nearest == span.farthest;  // nothing is below it
  if (span.is_open && !is_least) return word(span.nearest) + (above ? " and more" : " and fewer");
  const std::string first = word(std::min(span.nearest, span.farthest));
  const std::string last = word(std::max(span.nearest, span.farthest));
  return first == last ? first : first + " to " + last;
}

// Whether an outcome is another one beside any of the values between. Those are powers of two,
// which ranks and parts divide; what lies beside them they do not, and steps may be longer for it.
bool HasGaps(const Parameter& parameter, const Span& span,
             const std::function<Outcome(double)>& outcome_at) {
  if (!parameter.is_whole) return false;
  const double first = std::min(span.nearest, span.farthest);
  const double last = std::max(span.nearest, span.farthest);
  return std::ranges::any_of(parameter.values, [&](double value) {
    const double beside = value + 1;
    return first < beside && beside < last && outcome_at(beside) != span.outcome;
  });
}

}  // namespace

// Powers of two between, of many ranks of four, with the present value among them.
void AddPowers(const PlanQuestion& question, double least, double most, double present,
               Parameter& parameter) {
  // Of many ranks each price takes its time.
  const double factor = question.num_ranks > kFewRanks ? 4 : 2;
  for (double value = least; value <= most; value *= factor) parameter.values.push_back(value);
  parameter.values.push_back(present);
  std::sort(parameter.values.begin(), parameter.values.end());
  parameter.values.erase(std::unique(parameter.values.begin(), parameter.values.end()),
                         parameter.values.end());
  parameter.present = std::find(parameter.values.begin(), parameter.values.end(), present) -
                      parameter.values.begin();
}

Outcome OutcomeAt(PlanAtPoints& chosen, PlanAtPoints& other, const Parameter& parameter,
                  double value) {
  const PointScore& first = chosen.At(parameter, value);
  const PointScore& second = other.At(parameter, value);
  if (!second.seconds) return first.seconds ? Outcome::kLoses : Outcome::kNeither;
  if (!first.seconds) return first.fits ? Outcome::kRunsAlone : Outcome::kFitsAlone;
  // Less than that is too little to tell, and nobody would choose for it.
  return cost::kLeastGain * *second.seconds <= *first.seconds ? Outcome::kWins : Outcome::kLoses;
}

std::vector<Span> SpansOf(const Parameter& parameter, int direction,
                          const std::function<Outcome(double)>& outcome_at, size_t most) {
  const auto size = static_cast<int>(parameter.values.size());
  std::vector<Span> spans;
  bool is_within = false;  // the last of the spans goes on
  const auto end_at = [&](double farthest, bool is_open) {
    Span& span = spans.back();
    span.farthest = farthest;
    span.is_open = is_open;
    span.has_gaps = HasGaps(parameter, span, outcome_at);
    is_within = false;
  };
  Outcome last_outcome = Outcome::kLoses;
  double last = parameter.values[parameter.present];
  for (int i = static_cast<int>(parameter.present) + direction; i >= 0 && i < size;
       i += direction) {
    const double value = parameter.values[i];
    const Outcome outcome = outcome_at(value);
    if (outcome != last_outcome) {
      const auto is = [&](Outcome one) {
        return [&outcome_at, one](double middle) { return outcome_at(middle) == one; };
      };
      if (is_within) {
        end_at(EdgeOf(parameter, last, value, is(last_outcome)), /*is_open=*/false);
        if (spans.size() >= most) return spans;
      }
      if (outcome == Outcome::kNeither) return spans;
      if (outcome != Outcome::kLoses) {
        const double nearest = EdgeOf(parameter, value, last, is(outcome));
        spans.push_back({.outcome = outcome, .nearest = nearest});
        is_within = true;
      }
    }
    last_outcome = outcome;
    last = value;
  }
  if (is_within) end_at(last, /*is_open=*/true);
  return spans;
}

Parameter Batches(const PlanQuestion& question) {
  Parameter batch{.is_whole = true};
  AddPowers(question, 1, std::min(kMostBatch, question.step_tokens), question.workload.batch,
            batch);
  batch.at = [&question](double value) {
    Point point{.workload = question.workload};
    point.workload.batch = static_cast<int>(value);
    return point;
  };
  batch.words = [](const Span& span, bool above) {
    return "with batches of " + SpanWords(span, above, Count);
  };
  batch.range = fmt::format("batches of 1 to {}", Count(batch.values.back()));
  return batch;
}

// Prompts or answers, all of them in proportion.
Parameter Lengths(const PlanQuestion& question, int64_t RequestSums::*tokens, const char* name,
                  int least, int present, int most) {
  Parameter length{.is_whole = true};
  const int longest = static_cast<int>(question.workload.longest_request());
  const int positions = question.spec.max_positions - longest + present;
  AddPowers(question, least, std::max(present, std::min(most, positions)), present, length);
  // All plans are asked at the same values, and a trace is long.
  std::map<double, Requests> known;
  length.at = [&question, tokens, present, known](double value) mutable {
    const Requests& requests = question.workload.requests;
    if (!known.contains(value)) known.emplace(value, requests.Scaled(tokens, value / present));
    Point point{.workload = question.workload};
    point.workload.requests = known.at(value);
    return point;
  };
  length.words = [name](const Span& span, bool above) {
    const std::string values = SpanWords(span, above, Count);
    return fmt::format("with {} of {} {}", name, values, values == "1" ? "token" : "tokens");
  };
  length.range = fmt::format("{} of {} to {} tokens", name, Count(length.values.front()),
                             Count(length.values.back()));
  return length;
}

Parameter Prompts(const PlanQuestion& question) {
  const auto present = static_cast<int>(question.workload.mean_prompt_tokens());
  int most = kMostPrompt;
  if (question.spec.has_encoder()) {
    // It sees the longest one in one step.
    const int longest = question.workload.requests.longest_prompt();
    most = std::min(most, static_cast<int>(int64_t{present} * question.step_tokens / longest));
  }
  return Lengths(question, &RequestSums::prompt_tokens, "prompts", kLeastPrompt, present, most);
}

Parameter Answers(const PlanQuestion& question) {
  const int present = static_cast<int>(question.workload.mean_gen_tokens());
  return Lengths(question, &RequestSums::gen_tokens, "answers", /*least=*/1, std::max(1, present),
                 kMostAnswer);
}

// Of a stream.
Parameter Rates(const PlanQuestion& question) {
  Parameter rate;
  const double present = question.workload.arrival_rate;
  AddPowers(question, present / kMostRateFactor, present * kMostRateFactor, present, rate);
  rate.at = [&question](double value) {
    Point point{.workload = question.workload};
    point.workload.arrival_rate = value;
    return point;
  };
  rate.words = [](const Span& span, bool above) {
    const auto number = [](double value) { return fmt::format("{:.3g}", value); };
    return fmt::format("where {} requests arrive in a second", SpanWords(span, above, number));
  };
  rate.range =
      fmt::format("{:.3g} to {:.3g} requests in a second", rate.values.front(), rate.values.back());
  return rate;
}

// By the time that bytes take: words are about the rate.
Parameter Links(const PlanQuestion& question) {
  Parameter link;
  AddPowers(question, 1 / kMostFactor, kMostFactor, 1, link);
  link.at = [&question](double value) {
    return Point{.workload = question.workload, .conditions = {.link = value}};
  };
  link.words = [](const Span& span, bool above) {
    const std::string_view speed = above ? "slow" : "fast";
    const auto factor = [above](double value) {
      return fmt::format("{:.3g}", above ? value : 1 / value);
    };
    const std::string nearest = factor(span.nearest);
    const std::string farthest = factor(span.farthest);
    if (span.is_open) return fmt::format("on a link {0} times as {1} and {1}er", nearest, speed);
    if (nearest == farthest) return fmt::format("on a link {} times as {}", nearest, speed);
    return fmt::format("on a link {} to {} times as {}", nearest, farthest, speed);
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
  skew.words = [experts](const Span& span, bool above) {
    const auto percent = [](double value) { return fmt::format("{:.0f} %", 100 * value); };
    return fmt::format("where {} of the tokens go to {} of the experts",
                       SpanWords(span, above, percent), experts);
  };
  skew.range = fmt::format("a share of {:.0f} to {:.0f} % for {} experts",
                           100 * skew.values.front(), 100 * skew.values.back(), experts);
  return skew;
}

std::vector<Parameter> ParametersOf(const PlanQuestion& question) {
  std::vector<Parameter> parameters;
  const bool is_stream = question.workload.arrival_rate > 0;
  parameters.push_back(is_stream ? Rates(question) : Batches(question));
  parameters.push_back(Prompts(question));
  if (question.workload.objective != Objective::kTtft) parameters.push_back(Answers(question));
  if (question.num_ranks > 1) parameters.push_back(Links(question));
  if (auto skew = Skews(question)) parameters.push_back(*std::move(skew));
  return parameters;
}

namespace {

// Of the second plan, which is no better at the question's own values; `first` is how the first one
// is called.
std::string WhereTheOtherWins(PlanAtPoints& chosen, PlanAtPoints& other, std::string_view first,
                              const std::vector<Parameter>& parameters) {
  std::vector<std::string> wins;
  std::vector<std::string> fits;
  std::vector<std::string> runs;
  std::vector<std::string> ranges;
  for (const Parameter& parameter : parameters) {
    for (const int direction : {1, -1}) {
      const auto outcome_at = [&](double value) {
        return OutcomeAt(chosen, other, parameter, value);
      };
      for (const Span& span : SpansOf(parameter, direction, outcome_at)) {
        auto& places = span.outcome == Outcome::kWins        ? wins
                       : span.outcome == Outcome::kFitsAlone ? fits
                                                             : runs;
        const char* const gaps = span.has_gaps ? " (not with all of them)" : "";
        places.push_back(parameter.words(span, direction > 0) + gaps);
      }
    }
    ranges.push_back(parameter.range);
  }
  std::vector<std::string> parts;
  if (!wins.empty()) parts.push_back(fmt::format("wins {}", fmt::join(wins, "; ")));
  if (!fits.empty()) {
    parts.push_back(fmt::format("has memory where {} has not: {}", first, fmt::join(fits, "; ")));
  }
  if (!runs.empty()) {
    parts.push_back(fmt::format("does what {} does not: {}", first, fmt::join(runs, "; ")));
  }
  if (!parts.empty()) return fmt::format("{}", fmt::join(parts, "; "));
  return fmt::format("wins at none of the values tried in {}, as far as memory goes",
                     fmt::join(ranges, ", "));
}

}  // namespace

std::string WhereItWins(PlanAtPoints& chosen, PlanAtPoints& other, bool is_faster,
                        const std::vector<Parameter>& parameters) {
  if (!is_faster) return WhereTheOtherWins(chosen, other, "the chosen plan", parameters);
  return "is predicted to be faster here; the chosen plan " +
         WhereTheOtherWins(other, chosen, "this one", parameters);
}

}  // namespace convene::planner
