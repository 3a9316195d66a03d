// What an exchange among the ranks of a machine that is not here takes: its fixed seconds, and what
// part of a link's rate it reaches, by the kernels that may carry it. Which links it crosses is
// exchange_levels.h, and which kernels a schedule's exchanges take operator_prices.h.
//
// Three sorts of kernels are known: the collective of the task's kind (NCCL's); dispatch and
// combine whose rate was measured over the multiprocessors that they take (DeepEP's); and an
// all-reduce, where what a scatter sums up is gathered at once.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cost/machine_profile.h"
#include "cost/measured_model.h"
#include "cost/operator_work.h"
#include "model/model_spec.h"
#include "schedule/schedule.h"

namespace convene::cost {

// Bytes per second that one multiprocessor moves between devices, or least does: what 4 of them
// reach with 16,384 tokens of 7,168 values among 8 H100, 66 GB/s of dispatch and 71 of combine
// (DeepEP in SGLang 0.5.12, tables of aiconfigurator). With 17 and more the links are what limits.
inline constexpr double kBytesPerMultiprocessor = 17e9;

// Multiprocessors that a plan gives its exchanges.
struct ExchangeMultiprocessors {
  int number = 0;        // 0: the plan does not say
  bool is_most = false;  // it takes fewer where these suffice
};

class ExchangeCosts {
 public:
  // Refers to the machine, which outlives it. `spec`: whose tokens are dispatched.
  // Precondition: CheckExchangeModels, and links (OperatorCosts::Create).
  ExchangeCosts(const MachineProfile& machine, const DeviceFigures& device,
                const model::ModelSpec& spec);

  // What part of a link's rate is reached by an exchange among so many ranks that carries so many
  // bytes at that rate, beyond its fixed seconds.
  struct Share {
    double efficiency = 1;
    bool is_extrapolated = false;  // more bytes, or other ranks, than were measured
    double once = 0;               // its fixed seconds
    int multiprocessors = 0;       // that it was measured with; 0: no table says
  };

  // By the collective of the task's kind. Share::once is that of so many ranks; where an exchange
  // crosses several levels, of all of its ranks together.
  Share OfCollective(schedule::TaskKind kind, double num_ranks, double bytes,
                     double link_bytes_per_second) const;
  double OnceOfCollective(schedule::TaskKind kind, double num_ranks) const;

  // Whether the profile has dispatch, or combine, by kernels that take multiprocessors, for an
  // exchange of this kind among so many ranks, which are all that its host has: their tables are of
  // as many as NVLink joins.
  bool HasDispatch(schedule::TaskKind kind, double num_ranks) const;
  // Precondition: HasDispatch. `row_bytes` are those of a token on its way: one whose elements are
  // wider than the table's counts as one of so many more elements. 0: as wide as the table's.
  // Multiprocessors are as given, or else as many of those measured as the link needs. On a link of
  // another rate than that of the table as many stand for the same as they bear to the link: if it
  // is half as fast, half as many reach the same part of it.
  Share OfDispatch(schedule::TaskKind kind, double bytes, double link_bytes_per_second,
                   double row_bytes, ExchangeMultiprocessors given) const;

  bool HasAllReduce() const { return !all_reduce_.empty(); }
  // Of one of an all-reduce's two halves: half of its seconds, by the fastest of the kernels that
  // the profile has of it. None: it has none, or of fewer ranks.
  std::optional<Share> OfHalfAllReduce(double num_ranks, double bytes,
                                       double link_bytes_per_second) const;

  // Those that an exchange takes which moves so many bytes per second, at most half of the device;
  // 0: the device is not made of any.
  int MultiprocessorsFor(double bytes_per_second) const;

  // "all-to-all: ...", by figure, for people.
  std::vector<std::string> Notes() const;

 private:
  const MeasuredModel& CollectiveOf(schedule::TaskKind kind) const;
  const MeasuredModel& DispatchOf(schedule::TaskKind kind) const;
  // Of the machine's link, as a part of that of the table.
  double RatioOfLinks(const MeasuredModel& measured) const;
  int MultiprocessorsOfDispatch(const MeasuredModel& measured, ExchangeMultiprocessors given) const;
  // Of dispatch or combine, whose link is busy so long; no fewer tokens than were measured.
  OperatorPrediction PredictDispatch(schedule::TaskKind kind, double ideal_seconds,
                                     double row_bytes, double multiprocessors) const;

  const MachineProfile* machine_;
  DeviceFigures device_;
  MeasuredModel all_gather_;
  MeasuredModel reduce_scatter_;
  MeasuredModel all_to_all_;
  MeasuredModel dispatch_;  // has no model where the spec has no experts, as the next
  MeasuredModel combine_;
  std::vector<MeasuredModel> all_reduce_;  // by kernel
  DispatchShape dispatch_shape_ = {};      // of one token of the spec's first layer with experts
};

// Models that these prices ask have the features that they ask with, and links of relatives have
// rates: a profile may come from anywhere.
Status CheckExchangeModels(const MachineProfile& machine);

// Whether an exchange is priced by an operator of this name. Of an all-reduce all kernels are.
bool IsExchangeModel(std::string_view name);

}  // namespace convene::cost
