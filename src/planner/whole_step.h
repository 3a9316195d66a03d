// The time of a step of a whole model from the simulation of few of its layers: layers of one shape
// repeat, so one of them stands for all. Where a step's sequences come from is workload_steps.h.
#pragma once

#include <array>
#include <vector>

#include "base/result.h"
#include "cost/step_interval.h"
#include "planner/predict_step.h"
#include "planner/step_pricer.h"

namespace convene::planner {

// A model of few layers that stands for one of many.
struct ShortModel {
  model::ModelSpec spec;       // without tensors
  std::vector<double> counts;  // by its layer: the layers of the whole model that it stands for
  std::vector<cost::ExpertShares> shares = {};  // by its layer; one: of all; none: all alike
  bool is_encoder = false;  // its layers are those of the encoder, for steps of it
};

// The first layer and the last one stand for themselves. Of those between, one stands for all of
// its shape; where shares differ by layer, up to six of each shape do, for layers that concentrate
// their tokens alike. `is_overlapping`: for steps in which layers overlap, since micro-batches go
// through them; four take the place of each of these.
ShortModel Shorten(const model::ModelSpec& spec, const std::vector<cost::ExpertShares>& shares,
                   bool is_overlapping = false);

// Of the encoder's layers. Of how tokens spread over experts only what holds for all layers is
// known of them (`shares` of one entry). The decoder keeps its layers: a step of the encoder ends
// with their keys and values. Precondition: the model has an encoder.
ShortModel ShortenEncoder(const model::ModelSpec& spec,
                          const std::vector<cost::ExpertShares>& shares,
                          bool is_overlapping = false);

// All layers, each for itself: where they are divided over ranks.
ShortModel Unshortened(const model::ModelSpec& spec, const std::vector<cost::ExpertShares>& shares);

struct WholeStep {
  double seconds = 0;
  // Of the tasks that are waited for; with once_seconds they sum to seconds.
  cost::KindSeconds path = {};
  double overlapped_seconds = 0;  // of steps whose exchanges run beside computation
  double once_seconds = 0;
  double extrapolated_share = 0;
  // Of the rank that computes experts longest, over the mean of those that have any, as routings
  // that are drawn have it (routing_waits.h); 1: all alike, or no experts.
  double imbalance = 1;
};

// What a simulated step of the short model says of the whole one: each layer adds what passes from
// the end of the one before it to its own, as often as it stands for a layer.
WholeStep ExtendStep(const ShortModel& model, const PredictedStep& step);

// PredictStep of the short model, extended. `groups` and errors as there.
Result<WholeStep> PredictWholeStep(const ShortModel& model, const strategy::StepOptions& options,
                                   const std::vector<std::vector<strategy::SequenceRows>>& groups,
                                   const StepPricer& pricer);

// Experts that move from one division to another (strategy/transition.h), layer by layer. `bytes`:
// of an element of weights. Error: as Price's.
Result<WholeStep> PredictTransition(const ShortModel& model, const strategy::Layout& from,
                                    const strategy::Layout& to, double bytes,
                                    const StepPricer& pricer);

// The same where each rank has all that it needs (strategy::ExpertLoads), and nothing runs beside.
Result<WholeStep> PredictLoads(const ShortModel& model, const strategy::ExpertLoads& loads,
                               const StepPricer& pricer);

// Adds so many of the step to what some take together.
void Add(const WholeStep& step, double times, WholeStep& sum);

// For the interval of its seconds (cost/step_interval.h).
cost::Outline OutlineOf(const WholeStep& step);

}  // namespace convene::planner
