#include "cost/task_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "cost/json_reader.h"
#include "cost/non_negative_fit.h"

namespace convene::cost {
namespace {

// By so much more than any sample had a prediction may go without being marked.
constexpr double kMargin = 1.5;

// How much of a product's time at this intensity is waiting for memory.
double MemoryShare(double intensity, double balance) {
  return intensity <= balance ? 1 : balance / intensity;
}

// Of once, per_group and per_row_byte.
constexpr int kNumSingleColumns = 3;

// Each number becomes the sum of itself and all before it, or behind it.
void SumFromFront(std::span<double> numbers) {
  std::partial_sum(numbers.begin(), numbers.end(), numbers.begin());
}
void SumFromBehind(std::span<double> numbers) {
  std::partial_sum(numbers.rbegin(), numbers.rend(), numbers.rbegin());
}

// What each coefficient of a cost is multiplied with, in the order: once, per_group, per_row_byte,
// per_weight_byte, per_score.
std::vector<double> ColumnsOf(const TaskCost& cost, const TaskParts& parts,
                              const MachineState& state) {
  std::vector<double> columns = {state.compute, parts.groups * state.compute,
                                 parts.row_bytes * state.compute};
  const double memory = std::pow(state.memory, cost.sensitivity);
  const double share = MemoryShare(parts.product_intensity(), cost.balance);
  const double drift = share * memory + (1 - share) * state.compute;
  for (const double weight : WeightsAt(cost.per_weight_byte.at, parts.product_intensity())) {
    columns.push_back(weight * parts.weight_bytes * drift);
  }
  const double score_share = MemoryShare(parts.score_intensity(), cost.balance);
  const double score_drift = score_share * memory + (1 - score_share) * state.compute;
  // Beyond the last point a score takes as long as there.
  std::vector<double> weights = WeightsAt(cost.per_score.at, parts.score_intensity());
  if (!weights.empty()) weights.back() = std::min(weights.back(), 1.0);
  for (const double weight : weights) columns.push_back(weight * parts.score_flops * score_drift);
  return columns;
}

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const long at = std::lround(share * static_cast<double>(values.size() - 1));
  return values[static_cast<size_t>(at)];
}

struct Weighted {
  double value = 0;
  double weight = 0;
};

// The least value below which so much of all weight lies.
double QuantileOf(std::vector<Weighted> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end(),
            [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  double all = 0;
  for (const Weighted& each : values) all += each.weight;
  double below = 0;
  for (const Weighted& each : values) {
    below += each.weight;
    if (below >= share * all) return each.value;
  }
  return values.back().value;
}

}  // namespace

TaskCost TaskCost::Fit(std::span<const TaskSample> samples, double balance, double sensitivity) {
  TaskCost cost;
  cost.balance = balance;
  cost.sensitivity = sensitivity;
  std::vector<double> products;
  std::vector<double> scores;
  for (const TaskSample& sample : samples) {
    const TaskParts& parts = sample.parts;
    products.push_back(parts.product_intensity());
    scores.push_back(parts.score_intensity());
    cost.most_flops = std::max(cost.most_flops, parts.product_flops);
    cost.most_row_bytes = std::max(cost.most_row_bytes, parts.row_bytes);
    cost.most_groups = std::max(cost.most_groups, parts.groups);
    cost.most_score_flops = std::max(cost.most_score_flops, parts.score_flops);
  }
  cost.per_weight_byte.at = PointsOfCurve(std::move(products));
  cost.per_score.at = PointsOfCurve(std::move(scores));
  // Curves are fitted as their steps from point to point, none of them below 0: a byte of weights
  // takes no less time with more FLOPs for it, and a FLOP of scores no more with more FLOPs for
  // each byte. Without that a point of few samples takes whatever its neighbours leave over.
  const size_t num_products = cost.per_weight_byte.at.size();
  const size_t num_scores = cost.per_score.at.size();
  std::vector<Row> rows;
  rows.reserve(samples.size());
  for (const TaskSample& sample : samples) {
    std::vector<double> columns = ColumnsOf(cost, sample.parts, sample.state);
    const auto curves = columns.begin() + kNumSingleColumns;
    const auto of_scores = curves + static_cast<long>(num_products);
    SumFromBehind(std::span(curves, num_products));
    SumFromFront(std::span(of_scores, num_scores));
    rows.push_back({std::move(columns), sample.seconds});
  }
  std::vector<double> found = FitNonNegative(rows);
  found.resize(kNumSingleColumns + num_products + num_scores);  // none: no samples
  cost.once = found[0];
  cost.per_group = found[1];
  cost.per_row_byte = found[2];
  const auto curves = found.begin() + kNumSingleColumns;
  const auto of_scores = curves + static_cast<long>(num_products);
  SumFromFront(std::span(curves, num_products));
  SumFromBehind(std::span(of_scores, num_scores));
  cost.per_weight_byte.value.assign(curves, of_scores);
  cost.per_score.value.assign(of_scores, found.end());
  return cost;
}

TaskCost TaskCost::FitCurve(const TaskCost& like, TaskCurve which,
                            std::span<const TaskSample> samples) {
  const bool of_scores = which == TaskCurve::kScores;
  const auto curve_of = [&](TaskCost& cost) -> Curve& {
    return of_scores ? cost.per_score : cost.per_weight_byte;
  };
  TaskCost without = like;
  curve_of(without) = {};
  TaskCost cost = without;
  std::vector<double> intensities;
  double most_score_flops = 0;
  for (const TaskSample& sample : samples) {
    const TaskParts& parts = sample.parts;
    intensities.push_back(of_scores ? parts.score_intensity() : parts.product_intensity());
    cost.most_flops = std::max(cost.most_flops, parts.product_flops);
    cost.most_row_bytes = std::max(cost.most_row_bytes, parts.row_bytes);
    cost.most_groups = std::max(cost.most_groups, parts.groups);
    most_score_flops = std::max(most_score_flops, parts.score_flops);
  }
  if (of_scores) cost.most_score_flops = most_score_flops;
  Curve& curve = curve_of(cost);
  curve.at = PointsOfCurve(std::move(intensities));
  const auto num_points = static_cast<long>(curve.at.size());
  const long others = of_scores ? static_cast<long>(cost.per_weight_byte.at.size()) : 0;
  std::vector<Row> rows;
  for (const TaskSample& sample : samples) {
    const std::vector<double> columns = ColumnsOf(cost, sample.parts, sample.state);
    const auto first = columns.begin() + kNumSingleColumns + others;
    std::vector<double> fitted = {without.Seconds(sample.parts, sample.state)};
    fitted.insert(fitted.end(), first, first + num_points);
    const auto steps = std::span(fitted).subspan(1);
    of_scores ? SumFromFront(steps) : SumFromBehind(steps);
    rows.push_back({std::move(fitted), sample.seconds});
  }
  std::vector<double> found = FitNonNegative(rows);
  found.resize(static_cast<size_t>(1 + num_points));
  for (double* member : {&cost.once, &cost.per_group, &cost.per_row_byte}) *member *= found[0];
  Curve& other = of_scores ? cost.per_weight_byte : cost.per_score;
  for (double& value : other.value) value *= found[0];
  const auto steps = std::span(found).subspan(1);
  of_scores ? SumFromBehind(steps) : SumFromFront(steps);
  curve.value.assign(steps.begin(), steps.end());
  return cost;
}

double TaskCost::BestSensitivity(std::span<const TaskSample> samples, double balance) {
  double best = 1;
  double least = -1;
  for (const double sensitivity : {1.0, 0.75, 0.5, 0.25}) {
    const double error = Validate(samples, balance, sensitivity).mean_error;
    if (least >= 0 && error >= least) continue;
    least = error;
    best = sensitivity;
  }
  return best;
}

namespace {

// Each part of the folds predicted by what `fit` makes of the others.
HeldOut ValidateFit(std::span<const TaskSample> samples,
                    const std::function<TaskCost(std::span<const TaskSample>)>& fit) {
  const auto part_of = [](const TaskSample& sample) { return sample.fold % kHeldOutParts; };
  std::set<int> folds;
  for (const TaskSample& sample : samples) folds.insert(part_of(sample));
  std::vector<PredictedSample> predicted;
  for (const int fold : folds) {
    std::vector<TaskSample> others;
    for (const TaskSample& sample : samples) {
      if (part_of(sample) != fold) others.push_back(sample);
    }
    if (others.empty()) continue;
    const TaskCost cost = fit(others);
    for (const TaskSample& sample : samples) {
      if (part_of(sample) != fold) continue;
      predicted.push_back({cost.Seconds(sample.parts, sample.state), sample.seconds});
    }
  }
  return HeldOutOf(predicted);
}

}  // namespace

HeldOut TaskCost::Validate(std::span<const TaskSample> samples, double balance,
                           double sensitivity) {
  return ValidateFit(samples, [&](std::span<const TaskSample> others) {
    return Fit(others, balance, sensitivity);
  });
}

HeldOut TaskCost::ValidateCurve(const TaskCost& like, TaskCurve which,
                                std::span<const TaskSample> samples) {
  return ValidateFit(
      samples, [&](std::span<const TaskSample> others) { return FitCurve(like, which, others); });
}

HeldOut HeldOutOf(std::span<const PredictedSample> samples) {
  HeldOut held_out{.num_points = static_cast<int>(samples.size())};
  if (samples.empty()) return held_out;
  const auto count = static_cast<double>(samples.size());
  std::vector<double> errors;
  std::vector<Weighted> longer;
  double mean = 0;
  for (const PredictedSample& sample : samples) {
    const double error = sample.predicted / sample.measured - 1;
    errors.push_back(std::abs(error));
    if (sample.predicted > 0) {
      longer.push_back({sample.measured / sample.predicted - 1, sample.predicted});
    }
    held_out.mean_error += std::abs(error) / count;
    held_out.bias += error / count;
    mean += sample.measured / count;
  }
  double residuals = 0;
  double variance = 0;
  for (const PredictedSample& sample : samples) {
    residuals += std::pow(sample.predicted - sample.measured, 2);
    variance += std::pow(sample.measured - mean, 2);
  }
  held_out.r2 = variance > 0 ? 1 - residuals / variance : 1;
  held_out.median_error = Quantile(errors, 0.5);
  held_out.p95_error = Quantile(errors, 0.95);
  held_out.low = QuantileOf(longer, 0.05);
  held_out.high = QuantileOf(longer, 0.95);
  return held_out;
}

double TaskCost::Seconds(const TaskParts& parts, const MachineState& state) const {
  const std::vector<double> columns = ColumnsOf(*this, parts, state);
  double seconds = columns[0] * once + columns[1] * per_group + columns[2] * per_row_byte;
  size_t next = 3;
  for (const double value : per_weight_byte.value) seconds += columns[next++] * value;
  for (const double value : per_score.value) seconds += columns[next++] * value;
  return seconds;
}

bool TaskCost::Extrapolates(const TaskParts& parts) const {
  const auto beyond = [](double value, double most) { return value > kMargin * most; };
  const bool steeper =
      !per_weight_byte.at.empty() && beyond(parts.product_intensity(), per_weight_byte.at.back());
  return steeper || beyond(parts.product_flops, most_flops) ||
         beyond(parts.row_bytes, most_row_bytes) || beyond(parts.groups, most_groups) ||
         beyond(parts.score_flops, most_score_flops);
}

namespace {

Result<double> NumberOf(const nlohmann::json& json, const char* key, double most) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (found == json.end() || !found->is_number()) {
    return Error{fmt::format("a task's cost has no number \"{}\"", key)};
  }
  const double value = found->get<double>();
  if (!(value >= 0 && value <= most)) {
    return Error{fmt::format("a task's cost has a \"{}\" that is not from 0 to {}", key, most)};
  }
  return value;
}

constexpr double kMostSizeOfTask = 1e30;  // FLOPs and bytes
constexpr double kMostSensitivity = 100;  // fits have at most 1

struct Member {
  const char* key;
  double TaskCost::*value;
  double most;
};
constexpr Member kMembers[] = {
    {"once_s", &TaskCost::once, kMostCost},
    {"per_group_s", &TaskCost::per_group, kMostCost},
    {"per_row_byte_s", &TaskCost::per_row_byte, kMostCost},
    {"balance_flops_per_byte", &TaskCost::balance, kMostSizeOfTask},
    {"memory_sensitivity", &TaskCost::sensitivity, kMostSensitivity},
    {"most_flops", &TaskCost::most_flops, kMostSizeOfTask},
    {"most_row_bytes", &TaskCost::most_row_bytes, kMostSizeOfTask},
    {"most_groups", &TaskCost::most_groups, kMostSizeOfTask},
    {"most_score_flops", &TaskCost::most_score_flops, kMostSizeOfTask},
};

}  // namespace

nlohmann::ordered_json ToJson(const TaskCost& cost) {
  nlohmann::ordered_json json;
  for (const Member& member : kMembers) json[member.key] = cost.*member.value;
  json["per_weight_byte_s"] = ToJson(cost.per_weight_byte);
  json["per_score_flop_s"] = ToJson(cost.per_score);
  return json;
}

Result<TaskCost> TaskCostFromJson(const nlohmann::json& json) {
  TaskCost cost;
  for (const Member& member : kMembers) {
    const Result<double> value = NumberOf(json, member.key, member.most);
    if (!value) return value.error();
    cost.*member.value = *value;
  }
  Result<Curve> weights = CurveFromJson(json, "per_weight_byte_s");
  if (!weights) return weights.error();
  cost.per_weight_byte = *std::move(weights);
  Result<Curve> scores = CurveFromJson(json, "per_score_flop_s");
  if (!scores) return scores.error();
  cost.per_score = *std::move(scores);
  return cost;
}

}  // namespace convene::cost
