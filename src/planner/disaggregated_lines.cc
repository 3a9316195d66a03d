#include "planner/disaggregated_lines.h"

#include <algorithm>
#include <cmath>

#include "cost/relative_line.h"
#include "planner/layer_shapes.h"
#include "planner/predict_step.h"
#include "schedule/activity_graph.h"
#include "strategy/step_load.h"

namespace convene::planner {
namespace {

using schedule::TaskKind;

constexpr int kFinestPart = 64;

// Seconds of the tasks at one number of rows.
struct LayerSeconds {
  double attention = 0;
  double shared = 0;
  double counts = 0;
  double dispatch = 0;
  double experts = 0;
  double combine = 0;
};

double* PlaceOf(TaskKind kind, LayerSeconds& seconds) {
  switch (kind) {
    case TaskKind::kShared:
      return &seconds.shared;
    case TaskKind::kCounts:
      return &seconds.counts;
    case TaskKind::kDispatch:
      return &seconds.dispatch;
    case TaskKind::kExperts:
    case TaskKind::kReduce:
      return &seconds.experts;
    case TaskKind::kCombine:
      return &seconds.combine;
    default:
      return &seconds.attention;
  }
}

// A schedule of one layer whose first micro-batch and chunk are looked at. There are two of each,
// so that exchanges are priced as those beside computation are.
class PricedLayer {
 public:
  PricedLayer(const LinesQuestion& question, const model::ModelSpec& spec, int first_layer)
      : question_(question), spec_(spec), shares_(question.shares) {
    if (shares_.size() > 1) {
      const auto layer = static_cast<size_t>(first_layer);
      shares_ = std::vector<cost::ExpertShares>(1, question.shares.at(layer));
    }
    strategy::StepOptions options = Options();
    options.pipeline.chunks = 2;
    options.pipeline.micro_batches = 2;
    schedule_ = strategy::BuildStep(spec, options);
    graph_ = schedule::BuildActivityGraph(schedule_);
  }

  // With a `part`-th of the rows. Of each kind of task the slowest rank's.
  Result<LayerSeconds> At(int part, const StepPricer& pricer) const {
    StepQuestion step{.spec = spec_, .options = Options(), .shares = shares_};
    step.options.pipeline.micro_batches = part;
    step.groups.resize(static_cast<size_t>(question_.roles.num_groups()), question_.sequences);
    const cost::ExpectedSizes expected = ExpectSizes(step);
    const cost::Sizes sizes = [&](schedule::Size size) {
      size.micro_batch = 0;
      size.chunk = size.chunk < 0 ? -1 : 0;
      return expected.at(size);
    };
    const Result<SchedulePrices> priced = pricer.Price(spec_, schedule_, graph_, sizes);
    if (!priced) return priced.error();
    std::vector<LayerSeconds> by_rank(static_cast<size_t>(schedule_.num_ranks));
    for (size_t id = 0; id < schedule_.tasks.size(); ++id) {
      const schedule::Task& task = schedule_.tasks[id];
      if (task.layer != 0 || task.micro_batch > 0 || task.chunk > 0) continue;
      *PlaceOf(task.kind, by_rank[static_cast<size_t>(task.lane.rank)]) +=
          cost::SecondsAlone(priced->prices, graph_.activity_of[id]);
    }
    LayerSeconds most;
    for (LayerSeconds& each : by_rank) {
      for (const TaskKind kind : {TaskKind::kAttention, TaskKind::kShared, TaskKind::kCounts,
                                  TaskKind::kDispatch, TaskKind::kExperts, TaskKind::kCombine}) {
        double& place = *PlaceOf(kind, most);
        place = std::max(place, *PlaceOf(kind, each));
      }
    }
    return most;
  }

 private:
  strategy::StepOptions Options() const {
    strategy::StepOptions options;
    options.roles = question_.roles;
    options.bytes = question_.bytes;
    options.prunes_last_layer = false;
    return options;
  }

  const LinesQuestion& question_;
  const model::ModelSpec& spec_;
  std::vector<cost::ExpertShares> shares_;
  schedule::Schedule schedule_;
  schedule::ActivityGraph graph_;
};

Line FitLine(const std::vector<double>& rows, const std::vector<double>& seconds,
             FittedLines& fitted) {
  if (!(*std::min_element(seconds.begin(), seconds.end()) > 0)) return {};  // there is no such task
  const cost::RelativeLine line = cost::FitRelativeLine(rows, seconds);
  fitted.least_r2 = std::min(fitted.least_r2, line.r2);
  for (size_t i = 0; i < rows.size(); ++i) {
    fitted.worst_error = std::max(fitted.worst_error, std::abs(line.at(rows[i]) / seconds[i] - 1));
  }
  return {.once = line.alpha, .per_row = line.beta};
}

void AddTo(Line& sum, const Line& line, double times) {
  sum.once += times * line.once;
  sum.per_row += times * line.per_row;
}

}  // namespace

Result<FittedLines> FitDisaggregatedLines(const LinesQuestion& question, const StepPricer& pricer) {
  double rows = 0;
  for (const strategy::SequenceRows& each : question.sequences) {
    rows += static_cast<double>(each.num_tokens);
  }
  FittedLines fitted;
  DisaggregatedLines& lines = fitted.lines;
  lines.num_layers = 0;
  lines.most_rows = rows;
  const std::vector<LayerShape> shapes = LayerShapesOf(question.spec, 1);
  for (const LayerShape& shape : shapes) {
    if (shape.spec.layers.front().moe) lines.num_layers += shape.count;
  }
  if (lines.num_layers == 0) return Error{"the model has no experts that other ranks could have"};
  for (const LayerShape& shape : shapes) {
    if (!shape.spec.layers.front().moe) continue;
    const PricedLayer layer(question, shape.spec, shape.first);
    std::vector<double> at;
    std::vector<LayerSeconds> seconds;
    for (int part = 1; part <= kFinestPart && (part == 1 || rows / part >= 1); part *= 2) {
      const Result<LayerSeconds> priced = layer.At(part, pricer);
      if (!priced) return priced.error();
      at.push_back(rows / part);
      seconds.push_back(*priced);
    }
    const double share = static_cast<double>(shape.count) / lines.num_layers;
    const auto fit = [&](double LayerSeconds::*member, Line& line) {
      std::vector<double> of_task;
      for (const LayerSeconds& each : seconds) of_task.push_back(each.*member);
      AddTo(line, FitLine(at, of_task, fitted), share);
    };
    fit(&LayerSeconds::attention, lines.attention);
    fit(&LayerSeconds::shared, lines.shared);
    fit(&LayerSeconds::dispatch, lines.dispatch);
    fit(&LayerSeconds::experts, lines.experts);
    fit(&LayerSeconds::combine, lines.combine);
    lines.counts += share * seconds.front().counts;
  }
  return fitted;
}

namespace {

constexpr int kMoreTokensBefore = 1024;

double KeysPerRow(const std::vector<strategy::SequenceRows>& sequences) {
  strategy::StepLoadCounter counter(1);
  for (const strategy::SequenceRows& each : sequences) {
    counter.Add(0, each.first_position, each.num_tokens);
  }
  const strategy::StepLoad load = counter.most();
  return static_cast<double>(load.keys) / static_cast<double>(load.rows);
}

}  // namespace

Result<FittedLines> FitLinesByKeys(const LinesQuestion& question, const StepPricer& pricer) {
  Result<FittedLines> fitted = FitDisaggregatedLines(question, pricer);
  if (!fitted) return fitted;
  LinesQuestion further = question;
  for (strategy::SequenceRows& each : further.sequences) each.first_position += kMoreTokensBefore;
  const Result<FittedLines> with_more = FitDisaggregatedLines(further, pricer);
  if (!with_more) return with_more.error();
  DisaggregatedLines& lines = fitted->lines;
  const double rise = with_more->lines.attention.per_row - lines.attention.per_row;
  const double keys = KeysPerRow(question.sequences);
  // No line falls, and none begins below zero.
  lines.attention_per_key =
      std::clamp(rise / kMoreTokensBefore, 0.0, lines.attention.per_row / keys);
  lines.attention.per_row -= keys * lines.attention_per_key;
  lines.most_rows = with_more->lines.most_rows;
  return fitted;
}

}  // namespace convene::planner
