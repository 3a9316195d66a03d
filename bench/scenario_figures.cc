#include "bench/scenario_figures.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "base/median.h"
#include "cost/link_seconds.h"
#include "cost/prices.h"
#include "drawing/step_figures.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"

namespace convene::bench {
namespace {

using Json = nlohmann::ordered_json;
using runtime::RecordedStep;

// The round of the median, and of the upper one of two in the middle: one that was measured.
size_t MedianRound(const std::vector<double>& seconds) {
  std::vector<size_t> rounds(seconds.size());
  std::iota(rounds.begin(), rounds.end(), size_t{0});
  std::ranges::sort(rounds, {}, [&](size_t round) { return seconds[round]; });
  return rounds[rounds.size() / 2];
}

// What lanes, dependencies, waiting and the link that exchanges share make of measured tasks.
schedule::Timeline Simulate(const RecordedStep& step) {
  const schedule::Schedule& schedule = *step.schedule;
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  const std::vector<double> link_seconds = cost::LinkSeconds(schedule, graph, step.timeline);
  cost::Prices prices{.resources = {{"link", cost::ResourceKind::kLink, cost::ConstantRate(1)}},
                      .fixed_seconds = {},
                      .first_demand = {0},
                      .demands = {}};
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const double of_link = link_seconds[static_cast<size_t>(activity)];
    const schedule::TaskId task = graph.tasks_of(activity).front();
    const bool computes = !schedule::IsCollective(schedule.tasks[static_cast<size_t>(task)].kind);
    prices.fixed_seconds.push_back(
        computes ? step.timeline.tasks[static_cast<size_t>(task)].seconds() : 0);
    if (of_link > 0) prices.demands.push_back({.resource = 0, .amount = of_link});
    prices.first_demand.push_back(static_cast<int32_t>(prices.demands.size()));
  }
  return simulate::Simulate(schedule, graph, prices);
}

// Each step but the one that is held against it, simulated; the median of those.
std::optional<schedule::Timeline> SimulateOthers(const std::vector<RecordedStep>& steps,
                                                 const RecordedStep& held_against) {
  std::vector<schedule::Timeline> simulated;
  for (const RecordedStep& step : steps) {
    if (&step != &held_against) simulated.push_back(Simulate(step));
  }
  if (simulated.empty()) return std::nullopt;
  std::sort(simulated.begin(), simulated.end(),
            [](const auto& a, const auto& b) { return a.seconds() < b.seconds(); });
  return simulated[simulated.size() / 2];
}

drawing::StepFigures StepFiguresOf(const RecordedStep& step) {
  return drawing::FiguresOf(
      {.name = "", .schedule = *step.schedule, .measured = step.timeline, .predicted = {}});
}

// Whether all ranks took about as long for their attention, which is the same work on each: where
// they did not, some core had other things to do.
bool IsEven(const RecordedStep& step) {
  constexpr double kMost = 1.1;
  const auto by_kind = schedule::SecondsByKind(*step.schedule, step.timeline);
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  for (const auto& rank : by_kind) {
    const double seconds = rank[static_cast<size_t>(schedule::TaskKind::kAttention)];
    if (seconds == 0) continue;  // it has the experts alone
    least = std::min(least, seconds);
    most = std::max(most, seconds);
  }
  return most <= kMost * least;
}

Json Sections(const std::vector<drawing::StepFigures>& figures) {
  Json sections;
  for (size_t i = 0; i < figures.front().sections.size(); ++i) {
    const auto median = [&](double drawing::SectionFigures::*member) {
      std::vector<double> values;
      for (const drawing::StepFigures& step : figures) values.push_back(step.sections[i].*member);
      return Median(std::move(values));
    };
    using drawing::SectionFigures;
    sections[std::string(schedule::Name(figures.front().sections[i].kind))] = {
        {"mean_s", median(&SectionFigures::seconds)},
        {"deviation_s", median(&SectionFigures::seconds_sd)},
        {"longest_s", median(&SectionFigures::longest_seconds)},
        {"waiting_s", median(&SectionFigures::waiting_seconds)}};
  }
  return sections;
}

// How far the replayed time of each kind of task is from the measured one.
Json TaskErrors(const RecordedStep& step, const schedule::Timeline& simulated) {
  const drawing::StepFigures figures = drawing::FiguresOf(
      {.name = "", .schedule = *step.schedule, .measured = step.timeline, .predicted = simulated});
  Json errors = Json::object();
  for (const drawing::SectionFigures& section : figures.sections) {
    if (section.seconds < 0.01 * figures.seconds) continue;  // what hardly counts
    errors[std::string(schedule::Name(section.kind))] =
        section.predicted_seconds / section.seconds - 1;
  }
  return errors;
}

// What is compared within a round.
struct Ratios {
  std::vector<double> waiting = {};
  std::vector<double> speedup = {};
  std::vector<double> of_flat = {};

  Json ToJson() const {
    return {{"rounds", waiting.size()},
            {"waiting_share", Median(waiting)},
            {"rounds_with_first", speedup.size()},
            {"speedup", Median(speedup)},
            {"of_flat", Median(of_flat)}};
  }
};

}  // namespace

Json FiguresOf(const Repeated& repeated) {
  std::vector<drawing::StepFigures> figures;
  std::vector<double> seconds;
  std::vector<double> idle;
  Ratios all;
  Ratios even;
  for (size_t round = 0; round < repeated.steps.size(); ++round) {
    const RecordedStep& step = repeated.steps[round];
    const RecordedStep& first = repeated.first[round];
    const RecordedStep& flat = repeated.flat[round];
    figures.push_back(StepFiguresOf(step));
    const double one = figures.back().seconds;
    const auto mean = [&](double drawing::RankFigures::*member) {
      double sum = 0;
      for (const drawing::RankFigures& rank : figures.back().ranks) sum += rank.*member;
      return sum / static_cast<double>(figures.back().ranks.size());
    };
    seconds.push_back(one);
    idle.push_back(mean(&drawing::RankFigures::idle_share));
    const double waiting = mean(&drawing::RankFigures::waiting_share);
    all.waiting.push_back(waiting);
    all.speedup.push_back(first.timeline.seconds() / one);
    all.of_flat.push_back(flat.timeline.seconds() / one);
    if (!IsEven(step)) continue;
    even.waiting.push_back(waiting);
    if (IsEven(first)) even.speedup.push_back(all.speedup.back());
    if (IsEven(flat)) even.of_flat.push_back(all.of_flat.back());
  }
  const RecordedStep& median_step = repeated.steps[MedianRound(seconds)];
  const auto simulated = SimulateOthers(repeated.steps, median_step);
  return {{"median_s", Median(seconds)},
          {"least_s", *std::min_element(seconds.begin(), seconds.end())},
          {"most_s", *std::max_element(seconds.begin(), seconds.end())},
          {"all_rounds", all.ToJson()},
          {"even_rounds", even.ToJson()},
          {"replayed_s", simulated ? simulated->seconds() : 0},
          {"task_errors", simulated ? TaskErrors(median_step, *simulated) : Json::object()},
          {"not_computing_share", Median(idle)},
          {"sections", Sections(figures)}};
}

}  // namespace convene::bench
