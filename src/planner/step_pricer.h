// The border between the search and what is known of a machine: who can say what the tasks of a
// schedule cost there implements it, whether steps were measured, or data sheets and tables of
// operators are all there is. It builds no schedule and simulates none.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cost/machine_profile.h"
#include "cost/prices.h"
#include "cost/sizes.h"
#include "cost/step_costs.h"
#include "cost/step_interval.h"
#include "model/model_spec.h"
#include "schedule/activity_graph.h"
#include "schedule/schedule.h"

namespace convene::planner {

// The operator of a profile that says what finding the largest of as many logits as the vocabulary
// has takes.
inline constexpr const char* kSampleGreedily = "sample greedily";

// How slow a machine is beside what is known of it: 2 takes twice the time. For asking what would
// be if. And what a model makes of its caches.
struct Conditions {
  cost::MachineState machine = {};  // memory and cores
  double link = 1;                  // the time that bytes take, not what an exchange takes at least
  double disk = 1;
  bool alike_ranks = false;  // whatever is known of each (PricerSource::RankStatesOf)
  // Of the weights of all ranks together, which a cache may hold from step to step; 0: not known.
  double weight_bytes = 0;

  bool operator==(const Conditions& other) const {
    return machine.memory == other.machine.memory && machine.compute == other.machine.compute &&
           link == other.link && disk == other.disk && alike_ranks == other.alike_ranks &&
           weight_bytes == other.weight_bytes;
  }
};

// Who does the work: so many ranks with so many threads each, their weights in a format.
struct RankSetup {
  int num_ranks = 1;
  int num_threads = 1;
  std::string weights;  // kernels::Name of the format
  // Keys and values are cached in int8; otherwise in what goes with the weights: bf16, or float32.
  bool int8_kv = false;

  auto operator<=>(const RankSetup&) const = default;
};

struct SchedulePrices {
  cost::Prices prices;
  double once_seconds = 0;        // of a step besides its tasks
  double extrapolated_share = 0;  // of tasks' seconds, at sizes beyond what is known
};

class StepPricer {
 public:
  virtual ~StepPricer() = default;

  // Of a schedule of `spec`, as all ranks together have it. Error: a kind of task of which nothing
  // is known; says what to measure.
  virtual Result<SchedulePrices> Price(const model::ModelSpec& spec,
                                       const schedule::Schedule& schedule,
                                       const schedule::ActivityGraph& graph,
                                       const cost::Sizes& sizes) const = 0;
  virtual cost::StepErrors Errors() const = 0;
  // Of a greedy token of one sequence, which is no task of a step. 0: nobody measured it.
  virtual double SamplingSeconds(const model::ModelSpec& /*spec*/) const { return 0; }

  // Waits of layers that were found with these prices (routing_waits.h), by all that they depend
  // on: the many pipelines of one layout share them. A pricer is not for several threads at once.
  std::map<std::vector<double>, double>& known_waits() const { return known_waits_; }

 private:
  mutable std::map<std::vector<double>, double> known_waits_;
};

// Of one rank; 0: not known.
struct MachineFigures {
  double memory_bytes_per_second = 0;
  double operations_per_second = 0;
  double link_bytes_per_second = 0;  // of all ranks together, lasting
  double disk_bytes_per_second = 0;
};

class PricerSource {
 public:
  virtual ~PricerSource() = default;

  // Numbers of threads of which something is known for so many ranks and this format; none: nothing
  // is.
  virtual std::vector<int> ThreadsOf(int num_ranks, std::string_view weights) const = 0;
  // Formats of which anything is known, for any number of ranks.
  virtual std::vector<std::string> Formats() const = 0;
  // Of plans that leave so much to exchanges (plan::Plan::comm_budget). Error: nothing is known of
  // this setup; says what to measure.
  virtual Result<std::unique_ptr<StepPricer>> PricerOf(const RankSetup& setup,
                                                       const Conditions& conditions,
                                                       int comm_budget) const = 0;
  // Multiprocessors of a rank that experts could leave to exchanges, from as many as these need
  // downwards; none: what that costs and gains is not known.
  virtual std::vector<int> CommBudgets() const { return {}; }
  // Of a setup of which ThreadsOf gives nothing, or not so many threads: that, and what to do.
  virtual std::string WhyUnknown(int num_ranks, std::optional<int> num_threads,
                                 std::string_view weights) const = 0;
  // What the prices stand on. Precondition: something is known of the setup.
  virtual MachineFigures FiguresOf(const RankSetup& setup) const = 0;
  // By rank, how slow its memory and its cores are beside the prices; none: ranks are alike.
  virtual std::vector<cost::MachineState> RankStatesOf(const RankSetup& /*setup*/) const {
    return {};
  }
};

// By costs of steps that were measured (cost/step_costs.h). Keeps the reference.
class MeasuredPricer : public StepPricer {
 public:
  // A disk whose rate is 0 is not known; then steps that read it have no price. `file` as for
  // HowToMeasure.
  explicit MeasuredPricer(const cost::StepCosts& costs, const cost::MachineState& state = {},
                          const cost::DiskCost& disk = {}, std::string file = {})
      : costs_(costs), state_(state), disk_(disk), file_(std::move(file)) {}

  Result<SchedulePrices> Price(const model::ModelSpec& spec, const schedule::Schedule& schedule,
                               const schedule::ActivityGraph& graph,
                               const cost::Sizes& sizes) const override;
  cost::StepErrors Errors() const override { return cost::ErrorsOf(costs_); }

 private:
  const cost::StepCosts& costs_;
  cost::MachineState state_;
  cost::DiskCost disk_;
  std::string file_;
};

// By the costs of steps in a profile. Keeps the reference.
class MeasuredSource : public PricerSource {
 public:
  // `file` as for HowToMeasure.
  explicit MeasuredSource(const cost::MachineProfile& profile, std::string file = {})
      : profile_(profile), file_(std::move(file)) {}

  std::vector<int> ThreadsOf(int num_ranks, std::string_view weights) const override;
  std::vector<std::string> Formats() const override;
  // Costs were measured without a budget, and are those of any.
  Result<std::unique_ptr<StepPricer>> PricerOf(const RankSetup& setup, const Conditions& conditions,
                                               int comm_budget) const override;
  std::string WhyUnknown(int num_ranks, std::optional<int> num_threads,
                         std::string_view weights) const override;
  MachineFigures FiguresOf(const RankSetup& setup) const override;
  std::vector<cost::MachineState> RankStatesOf(const RankSetup& setup) const override;

 private:
  const cost::MachineProfile& profile_;
  std::string file_;
};

// Whether any of its tasks reads from a disk; then it has no price without the disk's rate.
bool ReadsDisk(const schedule::Schedule& schedule);
Error NoDiskRate();

// The command that measures the costs of so many ranks, to end a sentence. `num_threads`: of each
// rank; none: as many as ranks have by default. `file`: of the profile that the costs are missed
// in; empty: the kept one.
std::string HowToMeasure(int num_ranks, std::optional<int> num_threads, std::string_view weights,
                         std::string_view file);

}  // namespace convene::planner
