#include "cli/watch_options.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/message.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/value_options.h"
#include "evaluate/model_speed.h"

namespace convene::cli {
namespace {

// As cost::RouterCountsFromJson reads it.
nlohmann::ordered_json RoutingJson(const std::vector<std::vector<int64_t>>& expert_tokens) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const std::vector<int64_t>& tokens : expert_tokens) layers.push_back({{"experts", tokens}});
  return {{"layers", layers}};
}

void NoteNoSpeed(const Error& error) {
  PrintNote("note: the trace does not say how fast the machine was: {}\n", error.message);
}

}  // namespace

void WatchOptions::AddOptions(CLI::App& app) {
  AddPath(app, "--trace", trace_path_, "Write what typical steps did, for report and gantt")
      ->type_name("FILE.json")
      ->check(WritableFile())
      ->group(kRareOptions);
  AddPath(app, "--record-routing", routing_path_, "Write how many tokens each expert got")
      ->type_name("FILE.json")
      ->check(WritableFile())
      ->group(kRareOptions);
}

void WatchOptions::MeasureSpeeds(engine::LoadedModel& model) {
  if (trace_path_.empty() || model.plan().layout.num_ranks() > 1) return;
  const Result<cost::ReferenceSpeed> before = evaluate::MeasureSpeedBeside(model);
  if (!before) return NoteNoSpeed(before.error());
  speed_before_ = *before;
  measured_ = &model;
}

Status WatchOptions::Write() {
  const Status written = WriteJson(routing_path_, RoutingJson(watch_.expert_tokens()));
  if (!written) return written;
  if (trace_path_.empty()) return {};
  if (measured_ != nullptr) {
    const Result<cost::ReferenceSpeed> after = evaluate::MeasureSpeedBeside(*measured_);
    if (after) {
      watch_.SetSpeeds(speed_before_, *after);
    } else {
      NoteNoSpeed(after.error());
    }
  }
  return WriteText(trace_path_, drawing::TraceJson(watch_.MakeTrace()));
}

}  // namespace convene::cli
