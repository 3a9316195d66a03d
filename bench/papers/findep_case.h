// A model on a testbed of FinDEP (Pan et al., 2025), with what the paper's text has lost assumed in
// one place: steps of it in simulation, and what the solver says of them. The tables are findep.cc.
#pragma once

#include <string>
#include <vector>

#include "model/model_spec.h"
#include "planner/disaggregated_solver.h"
#include "planner/operator_pricer.h"
#include "planner/step_pricer.h"
#include "planner/whole_step.h"
#include "strategy/attention_sizes.h"

namespace convene::papers {

inline constexpr char kTestbeds[] = {'A', 'B', 'C', 'D'};

// What the text does not have. Fixed before anything was computed from it or, where a figure of the
// paper speaks for it, by that figure; docs/results/papers_findep.md says which. Not fitted to
// speed-ups.
struct Assumptions {
  // Tokens that an attention rank has room for at once: the longest sequence that is measured.
  int rank_tokens = 8192;
  // Sequences that have arrived on each attention rank (Table 6).
  int arrived = 4;
  // A row travels once for each of its experts (Eq. 4), and experts are computed one after the
  // other, three products each (Eq. 3). False: as convene does it, once to each rank, and in
  // whichever order is faster.
  bool as_in_paper = true;
  // Of the rate of PCI Express that its specification has.
  double pcie_share = 1;
};

struct Groups {
  int attention = 0;
  int experts = 0;
};
Groups GroupsOf(char testbed, const std::string& model);

// The first layers of a model, as many as the paper takes on a testbed (section 5.4).
model::ModelSpec SmallModel(char testbed, const std::string& model);
// Of DeepSeek-V2 two layers, both with experts (section 5.3).
model::ModelSpec TwoLayers();

// PPPipe or FinDEP, as it is configured for some sequences of each attention rank.
struct Configured {
  planner::DisaggregatedPipeline pipeline = {};
  int sequences = 0;      // in all micro-batches, of each attention rank
  double throughput = 0;  // thousand tokens per second of all ranks
};

class Case {
 public:
  Case(char testbed, const std::string& model, model::ModelSpec spec,
       const Assumptions& assumptions = {});

  const Groups& groups() const { return groups_; }

  // With lines for up to so many sequences of each attention rank.
  planner::DisaggregatedQuestion Ask(int length, int max_sequences) const;

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
  // The one of the solver's proposals that is best in simulation, as convene plan chooses.
  Configured BestFine(int length, const std::vector<planner::DisaggregatedChoice>& proposals) const;

  double least_r2() const { return least_r2_; }

 private:
  // Prices of the paper's own exchanges and products, or of convene's.
  class Pricer : public planner::StepPricer {
   public:
    Pricer(cost::MachineProfile machine, bool as_in_paper, int attention_ranks);
    Result<planner::SchedulePrices> Price(const model::ModelSpec& spec,
                                          const schedule::Schedule& schedule,
                                          const schedule::ActivityGraph& graph,
                                          const cost::Sizes& sizes) const override;
    cost::StepErrors Errors() const override { return pricer_.Errors(); }

   private:
    planner::OperatorPricer pricer_;
    bool as_in_paper_;
    int attention_ranks_;
  };

  Groups groups_;
  model::ModelSpec spec_;
  Pricer pricer_;
  planner::ShortModel short_;
  mutable double least_r2_ = 1;
};

}  // namespace convene::papers
