// What the tasks of steps cost on a machine and its links, and prices of a schedule by that.
// fit_step_costs.h makes such costs of steps that ran.
#pragma once

#include <algorithm>
#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cost/prices.h"
#include "cost/sizes.h"
#include "cost/task_cost.h"
#include "schedule/schedule.h"

namespace convene::cost {

// What a collective moves.
struct MovedBytes {
  double all = 0;  // sent by all ranks
  // The most that a rank sends or receives, by what it were if all ranks that there are sent and
  // received alike.
  double busiest = 1;
};

// What an exchange takes, alone on the link, by its bytes: those of all ranks together. Networks
// let a burst through faster than they go on, so this is a curve.
struct ExchangeCost {
  Curve seconds = {};  // below its first point as there; beyond the last one with the last slope
  // How much longer it takes that ranks send or receive unlike numbers of bytes, as a share of how
  // much more the busiest direction of a rank carries than its even part: 0 where all bytes share
  // one medium, 1 where each rank has a rate of its own in both directions.
  double unevenness = 0;
  // What sending and receiving take from the cores of a rank that computes meanwhile, for each byte
  // that it sends or receives.
  double core_seconds_per_byte = 0;
  // The curve is of exchanges of the very plan, with whatever ran beside them, and of the seconds
  // that they had of a link that they share (link_seconds.h); it holds for all. Of costs that are
  // fitted to a run for its own pictures; no profile has it.
  bool is_of_plan = false;

  bool operator==(const ExchangeCost&) const = default;

  // Of one that moves next to nothing; 0 without a curve, as are the next ones.
  double once() const { return seconds.value.empty() ? 0 : seconds.value.front(); }
  double SecondsOf(double bytes) const;
  // Of exchanges one right after the other: at the rate at which the link goes on.
  double lasting_seconds_per_byte() const;
  // How much longer the bytes take where the busiest direction of a rank carries so many times its
  // even part.
  double Stretch(double busiest) const { return 1 + unevenness * std::max(0.0, busiest - 1); }
  // That take as long in even parts.
  double EvenBytes(const MovedBytes& bytes) const { return bytes.all * Stretch(bytes.busiest); }
};

MovedBytes BytesOf(const schedule::Schedule& schedule, std::span<const schedule::TaskId> tasks,
                   const Sizes& sizes);
// The same where only what ranks send is known, some of `num_ranks`: those that send nothing
// receive all, in even parts.
MovedBytes BytesOfSenders(std::span<const double> sent, int num_ranks);

inline constexpr size_t kMostLearntFrom = 64;

// Of one number of ranks, each with so many threads, and one format of weights.
struct StepCosts {
  int num_ranks = 1;
  int num_threads = 1;       // of a rank
  std::string weights;       // kernels::Name of the format
  std::string version = {};  // of convene, that measured it; empty: not known
  std::string date = {};     // when, in UTC, "2025-01-31T12:00:00Z"; empty: not known
  // Steps that these costs were corrected by after they were measured, each as "plan of model hash"
  // says it: what is said of such a plan by such costs is no test of predictions. At most
  // kMostLearntFrom of them, the last ones.
  std::vector<std::string> learnt_from = {};
  ReferenceSpeed reference = {};  // when it was measured: costs are those of MachineState 1, 1
  std::array<std::optional<TaskCost>, schedule::kNumTaskKinds> tasks = {};
  // Attention whose keys and values are cached in int8, where that of `tasks` has them in bf16;
  // none: not measured.
  std::optional<TaskCost> int8_attention = {};
  // Of tasks whose weights stay in the last-level cache from step to step, where those of all ranks
  // of a host together take at most so many bytes; none and 0: not measured.
  std::array<std::optional<TaskCost>, schedule::kNumTaskKinds> cached_tasks = {};
  double cached_weight_bytes = 0;
  // What loading experts (kLoadExperts) takes of the rank's cores while computation goes on, which
  // is more than loading alone, since both want memory and caches; none: as much as alone.
  std::optional<TaskCost> load_beside = {};
  ExchangeCost exchange = {};
  // Of copies whose pieces lie apart, by all threads of a rank while all ranks do the same: bytes
  // that are copied. 0: not measured, and half of what is read in a second.
  double copy_bytes_per_second = 0;
  double step_once = 0;  // seconds of a step besides its tasks: telling other ranks of it
  // By rank, how much longer than these costs what waits for its memory takes, and what waits for
  // its cores; none: ranks are alike.
  std::vector<MachineState> rank_states = {};
  // How well each kind of task, and exchanges, were predicted while they were held out.
  std::array<std::optional<HeldOut>, schedule::kNumTaskKinds> held_out = {};
  std::optional<HeldOut> int8_attention_held_out = {};
  std::optional<HeldOut> exchange_held_out = {};
  // Of whole steps whose exchanges run beside computation; they had no part in the costs of tasks.
  std::optional<HeldOut> overlapped_held_out = {};
  // How many times as wide as these errors make it the interval of a whole step has to be
  // (StepErrors::stretch), by steps of models that had no part in what predicted them.
  double interval_stretch = 1;

  bool operator==(const StepCosts& other) const;

  // Of a task of this kind; none: not known. Attention in pieces, as spilled keys and values have
  // it, is measured as a whole: its seconds are a sum over parts of its work, and each piece has
  // some.
  const std::optional<TaskCost>& CostOf(schedule::TaskKind kind) const;
  // Of a collective that moves so many bytes. Experts that move are packed by those who send
  // them and unpacked by those who get them, round after round: each byte is read and written twice
  // besides.
  double ExchangeSeconds(schedule::TaskKind kind, const MovedBytes& bytes,
                         const MachineState& state = {}) const;
  // Attention over a cache in int8 takes the place of that over one in bf16, or goes back to its
  // own: what prices, compares and refines looks at `tasks` alone.
  void SwapCaches();
  // The same of tasks whose weights are in the last-level cache, of the kinds that were measured.
  void SwapCachedTasks();
  // That these costs were corrected by such steps, as `learnt_from` names them.
  void LearntFrom(const std::string& name);

  // Of a task of such a cost on a rank, on a machine that is just now so slow.
  double TaskSeconds(const TaskCost& cost, int rank, const TaskParts& parts,
                     const MachineState& state = {}) const;
};

nlohmann::ordered_json ToJson(const StepCosts& costs);
// Errors: as TaskCostFromJson; a kind of task or a number that is not known.
Result<StepCosts> StepCostsFromJson(const nlohmann::json& json);

// What a thread of each rank does at once, as loading experts does (kLoadExperts): bytes that it
// copies from pieces that lie apart, and weights that it makes of int4.
struct LoadRates {
  double copied_bytes_per_second = 0;
  double weights_per_second = 0;
  // Core-seconds that either takes of computation which goes on meanwhile, for each second that it
  // takes alone: 1 where it takes its core's time and nothing else.
  double copying_beside = 1;
  double making_beside = 1;
};

// Of kLoadExperts: linear in what is copied and what is made of int4, whatever the model.
// Precondition: rates above 0.
TaskCost LoadCost(const LoadRates& rates, double bytes_per_weight);
// The same of what it takes of cores that compute meanwhile (StepCosts::load_beside).
TaskCost LoadCostBeside(const LoadRates& rates, double bytes_per_weight);

// Whether it loads experts while the step that it is part of goes on: it then takes longer than its
// cost, and computation does.
bool LoadsBeside(const schedule::Task& task);

// The disk that all ranks read from and spill to.
struct DiskCost {
  double bytes_per_second = 0;  // 0: what is read and written takes no time
  // That moving a byte takes of a core, with comparing checksums.
  double core_seconds_per_byte = 0;
};

// Each task takes all its rank's cores for its seconds; exchanges share a link, and take a part of
// the cores, as does what is read from a disk and written to it, at its rate. Precondition: all
// kinds of the schedule's tasks have costs, or nothing to do; where ranks are not alike, it has as
// many as the costs.
Prices PriceSchedule(const schedule::Schedule& schedule, const schedule::ActivityGraph& graph,
                     const StepCosts& costs, const Sizes& sizes, const MachineState& state = {},
                     const DiskCost& disk = {});

// Whether exchanges of the schedule come one right after the other, while computation goes on.
bool Overlaps(const schedule::Schedule& schedule);

// The first kind of task in it that has something to do and no cost; none: it can be priced.
std::optional<schedule::TaskKind> KindWithoutCost(const schedule::Schedule& schedule,
                                                  const StepCosts& costs);

// The tasks, as shares of all computing seconds, whose sizes are beyond those that were measured.
double ExtrapolatedShare(const schedule::Schedule& schedule, const StepCosts& costs,
                         const Sizes& sizes);

}  // namespace convene::cost
