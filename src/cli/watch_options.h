// --trace and --record-routing: what a command tells of its steps when it has ended.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"
#include "cli/cli11_fwd.h"
#include "cost/task_cost.h"
#include "engine/loaded_model.h"
#include "evaluate/step_watch.h"

namespace convene::cli {

class WatchOptions {
 public:
  // --trace FILE and --record-routing FILE, as rare options (docs/seeing.md).
  void AddOptions(CLI::App& app);
  bool is_wanted() const { return !trace_path_.empty() || !routing_path_.empty(); }

  void See(const runtime::RecordedStep& step) { watch_.See(step, !trace_path_.empty()); }

  // As drawing::Trace has them.
  void SetRun(std::string weights, int num_threads, std::string run, bool int8_kv) {
    watch_.SetRun(std::move(weights), num_threads, std::move(run), int8_kv);
  }

  // Before the first step, from the thread that computes: the steps of a trace tell how fast the
  // machine was beside them, which is measured now and by Write. `model` outlives Write. Nothing
  // where no trace is asked for, and on several ranks: all must measure at once, and when rank 0
  // writes, the others follow its steps and are told of nothing else.
  void MeasureSpeeds(engine::LoadedModel& model);

  // After the last step. Nothing where nothing was asked for.
  Status Write();
  // At a command's end, which fared so: where it failed, there is nothing to tell.
  Status WriteAfter(const Status& status) { return status ? Write() : status; }

 private:
  std::string trace_path_;
  std::string routing_path_;
  evaluate::StepWatch watch_;
  engine::LoadedModel* measured_ = nullptr;  // null: no speed was measured before its steps
  cost::ReferenceSpeed speed_before_;
};

}  // namespace convene::cli
