// Seconds of a kind of task as a sum over its parts, fitted to tasks that were measured: so much
// per task, per group of weights, per byte of rows, per byte of weights at an intensity of
// products, and per FLOP of scores at an intensity of those.
//
// A product with few rows takes as long as its weights are read, one with many as long as it is
// computed. In between neither bound is reached, and how far below it stays depends on kernels and
// machine. So the seconds per byte of weights are a curve over the intensity (FLOPs for each byte),
// straight between the intensities that were measured: seconds per byte of weights that never fall
// where intensity grows, seconds per FLOP of scores that never rise. Curves and all else are linear
// in what is fitted, so that one least-squares problem finds all of it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cost/curve.h"
#include "cost/task_parts.h"

namespace convene::cost {

// How slow a machine is just now: seconds of the reference kernels by those when the profile was
// measured. A machine's speed wanders, and its memory's not with its cores'.
struct MachineState {
  double memory = 1;
  double compute = 1;

  bool operator==(const MachineState&) const = default;
};

// The reference kernels: how fast memory is read and dot products are computed, by all threads of a
// rank while those of all ranks do the same.
struct ReferenceSpeed {
  double read_bytes_per_second = 0;
  double dot_operations_per_second = 0;  // in the format of the activations

  // How slow the machine is `now`, where this is the profile's.
  MachineState StateAt(const ReferenceSpeed& now) const {
    return {.memory = read_bytes_per_second / now.read_bytes_per_second,
            .compute = dot_operations_per_second / now.dot_operations_per_second};
  }
  // Where products take as long for their weights as for their FLOPs.
  double balance() const { return dot_operations_per_second / read_bytes_per_second; }
  bool operator==(const ReferenceSpeed&) const = default;
};

// Points are held out in so many parts, by their fold: steps that are alike, but for their
// contexts, are neighbours, and in different parts.
inline constexpr int kHeldOutParts = 7;

struct TaskSample {
  TaskParts parts;
  MachineState state;  // when it ran
  double seconds = 0;  // above 0
  int fold = 0;        // samples of one step have the same: they are held out together
  int rank = 0;        // that ran it
};

// Of points that were held out from fitting, in turn; errors are shares of what was measured.
struct HeldOut {
  int num_points = 0;
  double mean_error = 0;
  double median_error = 0;
  double p95_error = 0;
  double bias = 0;  // the mean of signed errors; above 0: predicted too long
  // Where measured / predicted - 1 lay, but for the twentieth at either end. A point counts as long
  // as it should take: of tasks that fill a step the error matters more than of those of
  // microseconds, and one that somebody disturbed counts no more than others.
  double low = 0;
  double high = 0;
  double r2 = 0;  // of the seconds that the held-out predictions explain
  // Beside it the same of a straight line alpha + beta · ideal seconds, those that the reference
  // kernels' rates allow, or of exchanges over their bytes: the same points are held out of it.
  // Both 0: there is none.
  double line_r2 = 0;
  double line_median_error = 0;

  bool has_line() const { return line_r2 != 0 || line_median_error != 0; }
};

struct PredictedSample {
  double predicted = 0;
  double measured = 0;
};
HeldOut HeldOutOf(std::span<const PredictedSample> samples);

// Of the two that a cost has.
enum class TaskCurve {
  kWeights,  // over the intensity of products
  kScores,
};

class TaskCost {
 public:
  TaskCost() = default;
  // `balance`: the intensity at which products take as long for weights as for FLOPs; below it they
  // wait for memory. `sensitivity`: as the member. Precondition: samples.
  static TaskCost Fit(std::span<const TaskSample> samples, double balance, double sensitivity);
  // The same of a part of the folds, tried on the others, in turn.
  static HeldOut Validate(std::span<const TaskSample> samples, double balance, double sensitivity);
  // `like` with another curve: these samples' keys and values lie in another format, or their
  // weights elsewhere. All else is that of `like`, but for a factor, so that few samples do.
  // Precondition: samples.
  static TaskCost FitCurve(const TaskCost& like, TaskCurve which,
                           std::span<const TaskSample> samples);
  static HeldOut ValidateCurve(const TaskCost& like, TaskCurve which,
                               std::span<const TaskSample> samples);
  // Of some the one with the least error at held-out points.
  static double BestSensitivity(std::span<const TaskSample> samples, double balance);

  double Seconds(const TaskParts& parts, const MachineState& state = {}) const;
  // Those of them that go with the cores; the others go with memory.
  double SecondsOfCores(const TaskParts& parts, const MachineState& state = {}) const {
    return Seconds(parts, {.memory = 0, .compute = state.compute});
  }
  // More FLOPs, bytes or groups than any sample had, by more than half; or a higher intensity.
  bool Extrapolates(const TaskParts& parts) const;

  bool operator==(const TaskCost&) const = default;

  // Plain data, as the profile keeps it.
  double once = 0;
  double per_group = 0;
  double per_row_byte = 0;
  Curve per_weight_byte;  // over the intensity of products
  Curve per_score;        // seconds per FLOP, over the intensity of scores
  double balance = 1;
  // What waits for memory takes state.memory to the power of this: less than 1 where tasks get from
  // a faster memory less than the reference kernel does.
  double sensitivity = 1;
  // The most that a sample had.
  double most_flops = 0;
  double most_row_bytes = 0;
  double most_groups = 0;
  double most_score_flops = 0;
};

nlohmann::ordered_json ToJson(const TaskCost& cost);
// Errors: a key that is missing or of the wrong kind, numbers that are negative or not finite,
// curves that do not increase.
Result<TaskCost> TaskCostFromJson(const nlohmann::json& json);

}  // namespace convene::cost
