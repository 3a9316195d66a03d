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
#include "cost/machine_profile.h"
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
  // That an exchange takes while it runs, from whatever is computed beside it; 0: as many as its
  // links need (kBytesPerMultiprocessor).
  int exchange_multiprocessors = 0;
};

// Bytes per second that one multiprocessor moves between devices, or least does: what 4 of them
// reach with 16,384 tokens of 7,168 values among 8 H100, 66 GB/s of dispatch and 71 of combine
// (DeepEP in SGLang 0.5.12, tables of aiconfigurator). With 17 and more the links are what limits.
inline constexpr double kBytesPerMultiprocessor = 17e9;

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

  // Of a collective: its fixed seconds among so many ranks, and what part of a link's rate is
  // reached by one that carries so many bytes at that rate; whether either is of more bytes or of
  // another number of ranks than were measured. Where the profile has dispatch and combine by
  // kernels that take multiprocessors (DispatchShape), these two are priced by them among as many
  // ranks as were measured, with as many multiprocessors as the options say, and by the all-to-all
  // otherwise. Then `row_bytes` are those of a token on its way: one whose elements are wider than
  // the table's counts as one of so many more elements. 0: as wide as the table's.
  struct LinkShare {
    double efficiency = 1;
    bool is_extrapolated = false;
    int multiprocessors = 0;  // with which it was measured; 0: no table says
  };
  double ExchangeOnce(schedule::TaskKind kind, double num_ranks) const;
  LinkShare LinkEfficiency(schedule::TaskKind kind, double num_ranks, double bytes,
                           double link_bytes_per_second, double row_bytes = 0) const;

  // Multiprocessors of a device that a task computes on, and those that an exchange takes which
  // moves so many bytes per second; 0: the device is not made of any.
  int MultiprocessorsOf(schedule::TaskKind kind) const;
  int MultiprocessorsOfExchange(double bytes_per_second) const;

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
  const Source& OfCollective(schedule::TaskKind kind, double num_ranks) const;
  bool IsDispatch(const Source& source) const {
    return &source == &dispatch_ || &source == &combine_;
  }
  int MultiprocessorsOfDispatch(const Source& source) const;
  // Of a source of dispatch or combine, whose link is busy so long; no fewer tokens than one.
  OperatorPrediction PredictDispatch(const Source& source, double ideal_seconds,
                                     double row_bytes) const;
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
  Source all_gather_;
  Source reduce_scatter_;
  Source all_to_all_;
  Source dispatch_;  // has no model where the spec has no experts, as the next
  Source combine_;
  DispatchShape dispatch_shape_ = {};  // of one token of the spec's first layer with experts
  std::vector<std::string> notes_;
};

// Whether some price asks for an operator of this name in a machine's profile, where weights are in
// one of these formats (OperatorCostsOptions::format). Kernels after an operator's first are asked
// for by none, and neither is all-reduce: schedules have a reduce-scatter and an all-gather.
bool IsPriced(std::string_view name, std::span<const std::string> formats);

}  // namespace convene::cost
