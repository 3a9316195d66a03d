// What the strategies of hybrid parallelism cost: a layer of each pair of attention and experts as
// a simulated schedule, in prefill and in decode, and the transitions between layouts of the
// experts. Which strategies there are and which is best is hybrid_search.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cost/expected_sizes.h"
#include "cost/machine_profile.h"
#include "cost/operator_costs.h"
#include "cost/prices.h"
#include "model/model_spec.h"
#include "planner/hybrid_program.h"
#include "strategy/attention_sizes.h"
#include "strategy/step.h"

namespace convene::planner {

// Prices of a schedule of `spec`, which may have fewer layers than the model that is planned.
using PriceStep =
    std::function<Result<cost::Prices>(const model::ModelSpec& spec, const schedule::Schedule&,
                                       const schedule::ActivityGraph&, const cost::Sizes&)>;

// Of a layout's schedules: an engine may have exchanges of its own for some of them.
using PriceOfLayout = std::function<PriceStep(const strategy::Layout& layout)>;

// By models of operators; keeps the reference.
PriceStep PriceOn(const cost::MachineProfile& machine, cost::OperatorCostsOptions options);

// Some sequences of a batch, which all have as many tokens in the step.
struct PhaseStep {
  int batch = 1;      // sequences, of all groups of ranks together
  double tokens = 1;  // of each in the step
  double first_position = 0;
  double prompt_length = 0;  // decides the form of latent attention
};

// Degrees of tensor parallelism by powers of two; the other degree is ranks / it.
struct AttentionStrategy {
  int tensor = 1;
  int data = 1;
};
struct ExpertStrategy {
  int expert = 1;
  int tensor = 1;
};

strategy::Layout LayoutOf(const AttentionStrategy& attention, const ExpertStrategy& experts);
// `divides_rest`: as HybridQuestion has it (hybrid_search.h).
strategy::Layout LayoutOf(const AttentionStrategy& attention, const ExpertStrategy& experts,
                          const model::ModelSpec& spec, bool divides_rest);

// The sequences of each group: as evenly as they can be divided, the first groups with more.
std::vector<std::vector<strategy::SequenceRows>> Divide(const PhaseStep& step, int num_groups);

struct LayerCostsQuestion {
  const model::ModelSpec& spec;
  const std::vector<AttentionStrategy>& attention;
  const std::vector<ExpertStrategy>& experts;
  strategy::ElementBytes bytes = {};
  strategy::Pipeline pipeline = {};
  std::vector<cost::ExpertShares> shares = {};  // as HybridQuestion has it, as is the next
  bool divides_rest = false;
  PriceOfLayout price_of = {};  // none: `price` is that of all layouts
  const PriceStep& price;
};

struct PhaseTables {
  // By strategies, seconds of the mean layer; layers that differ in shape are simulated each.
  PhaseCosts layer;
  // Embedding, head and what is between them and the layers, by attention: seconds of a step.
  std::vector<double> ends;
};

// Errors: of `price`.
Result<PhaseTables> PriceLayers(const LayerCostsQuestion& question, const PhaseStep& step);

// What a transition moves and takes.
struct TransitionCost {
  double reshard_seconds = 0;
  double missing_bytes = 0;  // most that a rank has to get, in the format of the weights
};
Result<TransitionCost> PriceTransition(const model::ModelSpec& spec, const strategy::Layout& from,
                                       const strategy::Layout& to, double weight_bytes,
                                       const PriceStep& price);

}  // namespace convene::planner
