// What the tasks of steps cost on a machine of whose operators there are models, or of which only a
// data sheet is known, and prices of a schedule by that: machines that are not here. What steps
// cost that were measured on a machine is step_costs.h.
//
// A task is the operators that a device computes one after the other: products, routed experts,
// scores, and passes over rows. Each takes what its model says. An operator without a model takes
// the line of its nearest relative: the fixed seconds of the model of products, and as many seconds
// for each second that the device's limits would allow. A model that was measured on another
// machine (MachineProfile::measured_on) gives that machine's share of its limits, which this one is
// expected to reach of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/machine_profile.h"
#include "cost/operator_work.h"
#include "cost/prices.h"
#include "cost/sizes.h"
#include "cost/task_matrices.h"
#include "cost/task_parts.h"
#include "model/model_spec.h"

namespace convene::cost {

// How the routed experts of a device are computed (plan::GemmChoice).
enum class ExpertsOrder {
  kFaster,   // whichever is, by load
  kGrouped,  // all in one operator
  kDense,    // one after the other, each with the products of a dense block
};

struct OperatorCostsOptions {
  std::string format = "bf16";  // of the weights, as ProductFormatOf names it
  ExpertsOrder order = ExpertsOrder::kFaster;
  // Multiprocessors that experts leave to exchanges (plan::Plan::comm_budget). What waits for
  // memory loses nothing by it.
  int comm_budget = 0;
};

class OperatorCosts {
 public:
  // A schedule's work has ElementBytes::weights as the format has them. Refers to both, which
  // outlive it. Errors: a format that the machine does not compute in, or that is not known; no
  // figures of a device or a host; no links; a budget that leaves nothing.
  static Result<OperatorCosts> Create(const MachineProfile& machine, const model::ModelSpec& spec,
                                      const OperatorCostsOptions& options = {});

  // What stands behind each figure: "products: A100 SXM4 80GB, ..."; for people.
  const std::vector<std::string>& notes() const { return notes_; }
  const MachineProfile& machine() const { return *machine_; }
  const DeviceFigures& device() const { return device_; }
  const ProductFormat& format() const { return format_; }

  // Of a task that is no collective, with these parts. `is_projected`: as WholeMatricesOf.
  double TaskSeconds(const schedule::Task& task, const TaskParts& parts, bool is_projected) const;

  double ProductSeconds(const ProductShape& shape) const;
  // `slots` rows of `visited` experts, of each of which the device has `elements` weights; in the
  // order of the options, as the two after it by themselves.
  double ExpertsSeconds(const model::MoeSpec& moe, double slots, double visited,
                        double elements) const;
  double GroupedExpertsSeconds(const model::MoeSpec& moe, double slots, double visited,
                               double elements) const;
  double DenseExpertsSeconds(const model::MoeSpec& moe, double slots, double visited,
                             double elements) const;
  // Of scores or a pass over rows: the longer of both at the device's limits, on the line.
  double OtherSeconds(double flops, double bytes) const;

  // Of a collective: its fixed seconds among so many ranks, and what part of a link's rate is
  // reached by one that carries so many bytes at that rate.
  double ExchangeOnce(schedule::TaskKind kind, double num_ranks) const;
  double LinkEfficiency(schedule::TaskKind kind, double num_ranks, double bytes,
                        double link_bytes_per_second) const;

 private:
  // A model with what its ideal seconds are of.
  struct Source {
    const OperatorModel* model = nullptr;  // null: there is none
    DeviceFigures device = {};
    ProductFormat format = {};
    double link_bytes_per_second = 0;
  };

  OperatorCosts(const MachineProfile& machine, const model::ModelSpec& spec, DeviceFigures device,
                ProductFormat format, const OperatorCostsOptions& options);
  Source Find(const std::string& name, const ProductFormat& format) const;
  // The operator in the costs' format, or else in bf16, whose efficiency it then takes.
  Source FindProduct(const std::string& name);
  void Note(const char* what, const Source& source, const std::string& instead);
  const Source& OfCollective(schedule::TaskKind kind) const;
  // On the device, or on the part of it that the budget leaves.
  template <class Shape>
  double SecondsOf(const Source& source, const Shape& shape, const DeviceFigures& device) const;

  const MachineProfile* machine_;
  const model::ModelSpec* spec_;
  DeviceFigures device_;
  DeviceFigures for_experts_;  // without the multiprocessors of the budget
  ProductFormat format_;
  ExpertsOrder order_;
  RelativeLine line_;  // of products, for what has no model
  Source product_;
  Source experts_;
  Source all_gather_;
  Source reduce_scatter_;
  Source all_to_all_;
  std::vector<std::string> notes_;
};

// Each task takes its rank's device for its seconds. An exchange starts after its fixed seconds and
// the latencies of the levels that it crosses, and then takes the links of each level for its
// bytes. Sizes are as expected; all kinds of tasks have a price.
Prices PriceSchedule(const schedule::Schedule& schedule, const schedule::ActivityGraph& graph,
                     const OperatorCosts& costs, const Sizes& sizes);

}  // namespace convene::cost
