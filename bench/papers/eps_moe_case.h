// What the reproductions of EPS-MoE (Qian et al., 2024) share: a layer of a model with
// data-parallel attention and expert parallelism on H800, in simulation, and experts alone. Tables
// are eps_moe.cc, figures are eps_moe_figures.cc.
#pragma once

#include <vector>

#include "bench/papers/paper_models.h"
#include "cost/operator_costs.h"
#include "strategy/step.h"

namespace convene::papers {

// Tables II and IV and Fig. 10 are measured on so many ranks.
inline constexpr int kRanksOfExperts = 4;
// What the paper gives its exchanges (Table IV, note 4).
inline constexpr int kExchangeMultiprocessors = 16;
// Experts on each rank. The paper does not say. From above the data sheet's peak bounds it: with 12
// the published 21.2 ms of Table II (3,072 rows of an expert, width 15,360, dense) less the
// exchanges at the link's rate would need 95 % of the peak. 10 is the most that 5 chunks divide.
inline constexpr int kExpertsOfRank = 10;

struct Setup {
  int num_ranks = 8;
  strategy::Pipeline pipeline = {};
  cost::ExpertsOrder order = cost::ExpertsOrder::kFaster;
  int comm_budget = 0;
  bool fp8_wire = false;
  int exchange_multiprocessors = 0;  // 0: as the preset says
};

// H800 with NVLink.
const cost::MachineProfile& MachineOfPaper();

planner::PhaseTables Layer(const model::ModelSpec& spec, const Setup& setup,
                           const planner::PhaseStep& step);

strategy::Pipeline Chunks(int number, bool overlap);

// One layer of experts alone: attention next to nothing. Each row goes to one expert, so that it
// travels once for each: the engine of the paper sends a row to each of its experts.
model::ModelSpec ExpertsAlone(int width, int experts_of_rank, int num_ranks);

// With more chunks than a rank has experts, the rows of each are divided, and its weights are read
// once for each part: parts are experts of their own.
int PartsOfExpert(int chunks);

// `rows`: of each expert that is not divided.
planner::PhaseStep StepOfExperts(int num_ranks, double rows);

// What the paper publishes beside what is predicted.
struct Scored {
  std::vector<double> published;
  std::vector<double> predicted;
  std::vector<double> errors;

  void Add(double is, double says, double error);
  void Print(const char* what) const;
};

}  // namespace convene::papers
