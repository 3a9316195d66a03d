// What the tasks of steps cost on a machine of whose operators there are models, or of which only a
// data sheet is known: machines that are not here. Prices of a schedule by that are
// operator_prices.h, and what steps cost that were measured on a machine step_costs.h.
//
// A task is the operators that a device computes one after the other: products, routed experts,
// scores, and passes over rows. Each takes what its model says. An operator without a model takes
// the line of its nearest relative: the fixed seconds of the model of products, and as many seconds
// for each second that the device's limits would allow. A model that was measured on another
// machine (MachineProfile::measured_on) gives that machine's share of its limits, which this one is
// expected to reach of its own.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/exchange_costs.h"
#include "cost/machine_profile.h"
#include "cost/measured_model.h"
#include "cost/operator_work.h"
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
  // Multiprocessors that experts leave to exchanges (plan::Plan::comm_budget). Products lose
  // nothing by it until the peak of those that they keep holds them back: what they miss of the
  // whole device's peak they do not miss for want of multiprocessors (EPS-MoE, section III-B,
  // conclusion 3, and Nanoflow, to which it refers).
  int comm_budget = 0;
  // That an exchange takes while it runs, from whatever is computed beside it; 0: of a budget as
  // many as help, where the schedule has something to compute beside its exchanges, and otherwise
  // as many as links need (kBytesPerMultiprocessor).
  int exchange_multiprocessors = 0;
};

// What something takes, and how much of that is predicted beyond what was measured
// (OperatorPrediction::extrapolated).
struct OperatorSeconds {
  double seconds = 0;
  double extrapolated = 0;  // of them

  OperatorSeconds& operator+=(const OperatorSeconds& other) {
    seconds += other.seconds;
    extrapolated += other.extrapolated;
    return *this;
  }
  OperatorSeconds operator*(double times) const {
    return {.seconds = times * seconds, .extrapolated = times * extrapolated};
  }
};

// A host as a device: what its cores do together, by the formats in which they are priced.
DeviceFigures FiguresOfHost(const hardware::Profile& host);

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
  const model::ModelSpec& spec() const { return *spec_; }

  // Of a task that is no collective, with these parts. `is_projected`: as WholeMatricesOf.
  OperatorSeconds TaskSeconds(const schedule::Task& task, const TaskParts& parts,
                              bool is_projected) const;

  OperatorSeconds ProductSeconds(const ProductShape& shape) const;
  // `slots` rows of `visited` experts, of each of which the device has `elements` weights; in the
  // order of the options, as the two after it by themselves.
  OperatorSeconds ExpertsSeconds(const model::MoeSpec& moe, double slots, double visited,
                                 double elements) const;
  OperatorSeconds GroupedExpertsSeconds(const model::MoeSpec& moe, double slots, double visited,
                                        double elements) const;
  OperatorSeconds DenseExpertsSeconds(const model::MoeSpec& moe, double slots, double visited,
                                      double elements) const;
  // Of a pass over rows: at the device's limits, on the line. Nobody measured it at any size.
  double OtherSeconds(double bytes) const;
  // Of scores: the longer of what their products and their keys and values take. Products reach the
  // share of the peak that FlashAttention-2 publishes: 0.72 on Ampere and Ada (225 of 312 TFLOPS on
  // A100, arXiv 2307.08691, section 4.2), 0.35 on H100 (arXiv 2407.08608, section 1). That is a
  // limit of its kernels, so on other GPUs of Hopper a multiprocessor computes as much, up to the
  // share of Ampere. On other devices the share is that of the line.
  double ScoreSeconds(double flops, double bytes) const;

  // What exchanges take.
  const ExchangeCosts& exchanges() const { return exchanges_; }
  // Multiprocessors that the options give an exchange; `is_beside`: the schedule has something to
  // compute beside it.
  ExchangeMultiprocessors GivenToExchanges(bool is_beside) const;

  // Multiprocessors of a device that a task computes on; 0: the device is not made of any.
  int MultiprocessorsOf(schedule::TaskKind kind) const;

 private:
  // A model with what its ideal seconds are of.
  struct Source : MeasuredModel {
    ProductFormat format = {};
  };

  OperatorCosts(const MachineProfile& machine, const model::ModelSpec& spec, DeviceFigures device,
                ProductFormat format, const OperatorCostsOptions& options);
  Source Find(const std::string& name, const ProductFormat& format) const;
  // The operator in the costs' format, or else in bf16, whose efficiency it then takes.
  Source FindProduct(const std::string& name);
  // On the device, or on the part of it that the budget leaves.
  template <class Shape>
  OperatorSeconds SecondsOf(const Source& source, const Shape& shape,
                            const DeviceFigures& device) const;

  const MachineProfile* machine_;
  const model::ModelSpec* spec_;
  DeviceFigures device_;
  DeviceFigures for_experts_;  // without the multiprocessors of the budget
  ProductFormat format_;
  ExpertsOrder order_;
  int comm_budget_ = 0;
  int exchange_multiprocessors_ = 0;
  RelativeLine line_;       // of products, for what has no model
  double score_share_ = 0;  // of the peak
  Source product_;
  Source experts_;
  ExchangeCosts exchanges_;
  std::vector<std::string> notes_;
};

// Whether some price asks for an operator of this name in a machine's profile, where weights are in
// one of these formats (OperatorCostsOptions::format). Kernels after an operator's first are asked
// for by none, except those of an all-reduce, of which the fastest counts.
bool IsPriced(std::string_view name, std::span<const std::string> formats);

}  // namespace convene::cost
