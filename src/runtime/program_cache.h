// Schedules of steps, built and checked once for each form that steps take, with this rank's lanes
// of them.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>

#include "runtime/executor.h"
#include "strategy/step.h"

namespace convene::runtime {

// What a step's schedule follows from; the same on all ranks, which take it from the same plan and
// the step's announcement.
struct ProgramKey {
  bool encoder = false;
  // Whose roles it has; where all phases have the same, each program is kPrefill's.
  strategy::Phase phase = strategy::Phase::kPrefill;
  strategy::Pipeline pipeline = {};
  std::optional<strategy::Paging> paging = {};
  // Of a step in prefill: behind it each rank has the experts of decode, from its own memory.
  bool loads_decode = false;
  std::optional<strategy::SpilledKv> spilled_kv = {};
  // Of ranks that divide the head (strategy::StepOptions).
  int head_chunks = 1;
  bool largest_suffices = true;

  bool operator==(const ProgramKey&) const = default;
};

struct Program {
  ProgramKey key;
  std::shared_ptr<const schedule::Schedule> schedule;
  RankProgram lanes;
  // Whether something is computed while an exchange is under way.
  bool computes_beside = false;
};

class ProgramCache {
 public:
  struct Options {
    strategy::StepOptions step = {};  // its pipeline is what the keys have; its roles: prefill's
    std::optional<strategy::Roles> decode_roles = {};
    int rank = 0;
    bool all_ranks = false;  // tasks of all ranks instead of this one's
  };
  // Most that are kept; a form that was not used for longer is built again. Steps that have
  // pipelines of their own come in some dozens of forms.
  static constexpr size_t kMostPrograms = 32;

  // `spec`: the model as all ranks together have it; outlives the cache.
  ProgramCache(const model::ModelSpec& spec, const Options& options)
      : spec_(spec), options_(options) {}

  // Valid until kMostPrograms others have been asked for.
  const Program& Get(const ProgramKey& key);

  // What changes the experts to the division of a phase, by collectives or from what each rank
  // keeps for it; no step. There are decode_roles (CHECKed).
  enum class Change { kMove, kLoad };
  const Program& ChangeTo(strategy::Phase phase, Change change);

 private:
  std::unique_ptr<Program> Build(const ProgramKey& key) const;
  strategy::ExpertLoads LoadsTo(strategy::Phase phase) const;

  const model::ModelSpec& spec_;
  Options options_;
  std::deque<std::unique_ptr<Program>> programs_;                   // that was used last: in front
  std::array<std::array<std::unique_ptr<Program>, 2>, 2> changes_;  // by Change, then phase
};

}  // namespace convene::runtime
