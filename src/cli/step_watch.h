// --trace and --record-routing: looks at the steps of a command as they run, and writes what it saw
// of them at the end. It changes nothing about them.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "drawing/trace.h"
#include "runtime/recorded_step.h"

namespace convene::cli {

class StepWatch {
 public:
  // --trace FILE and --record-routing FILE, as rare options (docs/seeing.md).
  void AddOptions(CLI::App& app);
  bool is_wanted() const { return !trace_path_.empty() || !routing_path_.empty(); }

  void See(const runtime::RecordedStep& step);

  // After the last step. Nothing where nothing was asked for.
  Status Write() const;
  // At a command's end, which fared so: where it failed, there is nothing to tell.
  Status WriteAfter(const Status& status) const { return status ? Write() : status; }

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
  enum class Kind { kEncode, kPrefill, kDecode };

  static const runtime::RecordedStep& Typical(const std::vector<runtime::RecordedStep>& steps);
  drawing::TracedStep Traced(Kind kind, const runtime::RecordedStep& chosen) const;
  void Predict(Kind kind, const runtime::RecordedStep& chosen, drawing::TracedStep& traced) const;

  std::string trace_path_;
  std::string routing_path_;
  std::map<Kind, Sample> samples_;
  std::map<Kind, Sample> largest_;  // those with the most tokens
  std::vector<std::vector<int64_t>> expert_tokens_;
  double first_start_ = -1;
};

}  // namespace convene::cli
