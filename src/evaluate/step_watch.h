// Looks at a model's steps as they run, keeps some of them, and makes a trace of the typical ones.
// It changes nothing about them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cost/machine_profile.h"
#include "cost/step_costs.h"
#include "drawing/trace.h"
#include "runtime/recorded_step.h"

namespace convene::evaluate {

class StepWatch {
 public:
  // Whose steps they are: the format of the weights, the threads of a rank, and whether keys and
  // values are cached in int8.
  void SetRun(std::string weights, int num_threads, std::string run, bool int8_kv) {
    weights_ = std::move(weights);
    int8_kv_ = int8_kv;
    num_threads_ = num_threads;
    run_ = std::move(run);
  }

  // How fast the machine was before the first step and after the last one. It wanders, so that the
  // steps of a trace get the geometric mean; nobody measures between them, which would slow them.
  void SetSpeeds(const cost::ReferenceSpeed& before, const cost::ReferenceSpeed& after);

  // Predicts steps by the kept profile's costs of such ranks, where it has them, as the planner
  // does; otherwise by those of the other steps. By default it is the other way round.
  void PreferKeptCosts();

  // `keeps_steps` false: only counts what experts got, and the trace is empty.
  void See(const runtime::RecordedStep& step, bool keeps_steps);

  // Tokens of all steps seen that chose each expert, by layer of the decoder.
  const std::vector<std::vector<int64_t>>& expert_tokens() const { return expert_tokens_; }

  // Of the last step that was seen and kept, measured and predicted. Precondition: it is `step`.
  drawing::TracedStep TraceOf(const runtime::RecordedStep& step) const;

  // Of the steps seen: of each kind of step the most telling one, measured and predicted.
  drawing::Trace MakeTrace() const;

 private:
  // Some steps of many, spread evenly over all of them.
  struct Sample {
    std::vector<runtime::RecordedStep> steps;
    int64_t num_seen = 0;
    int64_t stride = 1;

    void Add(const runtime::RecordedStep& step);
  };
  // kLoading: of prefill, with decode's experts coming beside it.
  enum class Kind { kEncode, kPrefill, kLoading, kDecode, kToPrefill, kToDecode };

  static Kind KindOf(const runtime::RecordedStep& step);
  static cost::StepCosts FitTo(const std::vector<const runtime::RecordedStep*>& steps);
  static const runtime::RecordedStep& Typical(const std::vector<runtime::RecordedStep>& steps);
  static std::string NameOf(Kind kind, const runtime::RecordedStep& step);
  drawing::TracedStep Traced(Kind kind, const runtime::RecordedStep& chosen) const;
  void Predict(Kind kind, const runtime::RecordedStep& chosen, drawing::TracedStep& traced) const;
  // What was kept of the machine's ranks, if it has all that the schedule's tasks want.
  std::optional<cost::StepCosts> KeptCosts(const cost::MachineProfile& profile,
                                           const schedule::Schedule& schedule) const;
  // Of the same kind, with the same schedule.
  std::vector<const runtime::RecordedStep*> OthersThan(Kind kind,
                                                       const runtime::RecordedStep& chosen) const;

  std::map<Kind, Sample> samples_;
  std::map<Kind, Sample> largest_;  // those with the most tokens
  std::vector<std::vector<int64_t>> expert_tokens_;
  double first_start_ = -1;
  std::string weights_;
  int num_threads_ = 0;
  bool int8_kv_ = false;
  std::string run_;
  cost::ReferenceSpeed speed_;                     // 0: not known
  std::optional<cost::MachineProfile> preferred_;  // to the costs of other steps
};

}  // namespace convene::evaluate
