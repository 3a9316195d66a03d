// A model on a testbed of FinDEP (Pan et al., 2025), with what the paper does not say assumed in
// one place: steps of it in simulation, and what the solver says of them. The tables are
// findep_tables.h.
#pragma once

#include <string>
#include <vector>

#include "model/model_spec.h"
#include "planner/disaggregated_solver.h"
#include "planner/operator_pricer.h"
#include "planner/predict_step.h"
#include "planner/step_pricer.h"
#include "planner/whole_step.h"
#include "strategy/attention_sizes.h"

namespace convene::papers {

inline constexpr char kTestbeds[] = {'A', 'B', 'C', 'D'};

// What the paper does not say. None of it is fitted to speed-ups; docs/results/papers_findep.md
// gives the reasons.
struct Assumptions {
  // Tokens that an attention rank of testbeds A and B has room for at once: the longest sequence
  // that is measured.
  int rank_tokens = 8192;
  // By how much more there is on C and D, whose GPUs have twice the memory of A's.
  int more_on_hopper = 2;
  // Tables 5 and 7: PPPipe and FinDEP have the groups that are best for each, as the caption of
  // Table 5 says of PPPipe. False: the groups that the paper gives for Tables 3, 4 and 6.
  bool best_groups = true;
  // Sequences that have arrived on each attention rank (Table 6), which share the tokens.
  int arrived = 4;
  // The tokens of Table 6 are those of an attention rank. False: of all of them together.
  bool arrive_on_each = true;
  // Table 7: so many sequences on each attention rank, whatever their length; 0: as many as there
  // is room for.
  int exposed_sequences = 0;
  // A row travels once for each of its experts (Eq. 4), and experts are computed one after the
  // other, three products each (Eq. 3). False: as convene does it, once to each rank, and in
  // whichever order is faster.
  bool as_in_paper = true;
  // A micro-batch may be in the next layer while others are in this one (Eq. 5). False: all of them
  // end a layer together. Of FinDEP, and of the baselines.
  bool layers_overlap = true;
  bool baselines_overlap = true;
  // GPUs of testbeds A and B that share 16 lanes of PCI Express to all others; 0: each has its own.
  int gpus_of_uplink = 4;
  // Of the rate of PCI Express that its specification has.
  double pcie_share = 1;
  // That every product takes besides what its kernel does, as does attention.
  double product_start = 0;
};

int RankTokens(char testbed, const Assumptions& assumptions);

struct Groups {
  int attention = 0;
  int experts = 0;
};
// As the paper has them for Tables 3, 4 (sections 5.3) and 6 (section 5.5).
Groups GroupsOf(char testbed, const std::string& model);
// All divisions whose weights fit the memory of the testbed's GPUs, on D in steps of 4.
std::vector<Groups> DivisionsOf(char testbed, const model::ModelSpec& spec);

// The first layers of a model, as many as the paper takes on a testbed (section 5.4).
model::ModelSpec SmallModel(char testbed, const std::string& model);
// Of DeepSeek-V2 two layers, both with experts (section 5.3).
model::ModelSpec TwoLayers();

// PPPipe or FinDEP, as it is configured for some sequences of each attention rank.
struct Configured {
  planner::DisaggregatedPipeline pipeline = {};
  int sequences = 0;      // in all micro-batches, of each attention rank
  double throughput = 0;  // thousand tokens per second of all ranks
  Groups groups = {};
};

class Case {
 public:
  Case(char testbed, Groups groups, model::ModelSpec spec, const Assumptions& assumptions = {});

  const Groups& groups() const { return groups_; }

  // With lines for up to so many sequences of each attention rank; for FinDEP or for PPPipe.
  planner::DisaggregatedQuestion Ask(int length, int max_sequences,
                                     bool is_ping_pong = false) const;

  struct Simulated {
    double seconds = 0;
    double exposed = 0;  // in which no rank computes
  };
  // A step of the whole model with so many sequences of each attention rank.
  Simulated Simulate(const planner::DisaggregatedPipeline& pipeline, int length,
                     int sequences) const;
  // Thousand tokens per second.
  double Throughput(const planner::DisaggregatedPipeline& pipeline, int length,
                    int sequences) const;

  // The best numbers of micro-batches by simulation: PPPipe is configured as well as it can be.
  Configured BestPingPong(int length, int max_sequences) const;
  // The best in simulation of the solver's proposals, each with its chunks or with none.
  Configured BestFine(int length, const std::vector<planner::DisaggregatedChoice>& proposals) const;

  double least_r2() const { return least_r2_; }

 private:
  // Prices of the paper's own exchanges and products, or of convene's.
  class Pricer : public planner::StepPricer {
   public:
    Pricer(cost::MachineProfile machine, const Assumptions& assumptions, Groups groups);
    Result<planner::SchedulePrices> Price(const model::ModelSpec& spec,
                                          const schedule::Schedule& schedule,
                                          const schedule::ActivityGraph& graph,
                                          const cost::Sizes& sizes) const override;
    cost::StepErrors Errors() const override { return pricer_.Errors(); }

   private:
    void AddStarts(const model::ModelSpec& spec, const schedule::Schedule& schedule,
                   const schedule::ActivityGraph& graph, cost::Prices& prices) const;

    planner::OperatorPricer pricer_;
    Assumptions assumptions_;
    Groups groups_;
  };

  planner::PredictedStep Predict(const model::ModelSpec& spec,
                                 const planner::DisaggregatedPipeline& pipeline, int length,
                                 int sequences) const;

  Groups groups_;
  model::ModelSpec spec_;
  bool layers_overlap_;     // of FinDEP
  bool baselines_overlap_;  // likewise, of PPPipe and of a naive step
  Pricer pricer_;
  planner::ShortModel short_;
  mutable double least_r2_ = 1;
};

// The divisions that are best by lines for PPPipe or, of what the solver proposes, for FinDEP, the
// best few of them first; simulation decides among these.
std::vector<Groups> BestByLines(char testbed, const model::ModelSpec& spec, int length,
                                int max_sequences, bool is_ping_pong,
                                const Assumptions& assumptions);

}  // namespace convene::papers
