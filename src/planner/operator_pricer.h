// Prices of steps on a machine that is not here: by models of its operators, or those of its
// nearest relative, and the figures of data sheets (cost/operator_costs.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cost/operator_costs.h"
#include "planner/step_pricer.h"

namespace convene::planner {

// What convene calls int4 are whole-number weights that are multiplied in bf16; f32 has no
// operators.
Result<cost::OperatorCostsOptions> OperatorOptions(std::string_view weights);

class OperatorPricer : public StepPricer {
 public:
  OperatorPricer(cost::MachineProfile machine, cost::OperatorCostsOptions options)
      : machine_(std::move(machine)), options_(std::move(options)) {}

  Result<SchedulePrices> Price(const model::ModelSpec& spec, const schedule::Schedule& schedule,
                               const schedule::ActivityGraph& graph,
                               const cost::Sizes& sizes) const override;
  // Of the operator that most of such a task is, at points that were held out; none where there is
  // no model of it. Steps with overlap were never measured there.
  cost::StepErrors Errors() const override;

 private:
  cost::MachineProfile machine_;
  cost::OperatorCostsOptions options_;
};

// A rank is a device, or all cores of a host. Keeps the reference. Of the options all but the
// format, which the setup names, and the budget, which the plan names, hold for every setup.
class OperatorSource : public PricerSource {
 public:
  explicit OperatorSource(const cost::MachineProfile& machine,
                          cost::OperatorCostsOptions options = {})
      : machine_(machine), options_(std::move(options)) {}

  std::vector<int> ThreadsOf(int num_ranks, std::string_view weights) const override;
  std::vector<std::string> Formats() const override;
  Result<std::unique_ptr<StepPricer>> PricerOf(const RankSetup& setup, const Conditions& conditions,
                                               int comm_budget) const override;
  std::vector<int> CommBudgets() const override;
  std::string WhyUnknown(int num_ranks, std::optional<int> num_threads,
                         std::string_view weights) const override;
  MachineFigures FiguresOf(const RankSetup& setup) const override;

 private:
  const cost::MachineProfile& machine_;
  cost::OperatorCostsOptions options_;
};

}  // namespace convene::planner
