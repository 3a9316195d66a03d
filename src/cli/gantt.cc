#include "drawing/gantt.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/quote.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/parsed_by.h"
#include "cli/read_trace.h"
#include "cli/value_options.h"
#include "drawing/select_layers.h"

namespace convene::cli {
namespace {

// "3" or "0-7".
Result<std::pair<int, int>> ParseLayers(const std::string& text) {
  constexpr Bounds<int> kLayers = {0, kPositive.max};
  const size_t dash = std::min(text.find('-'), text.size());
  const Result<int> first = ParseNumber(text.substr(0, dash), kLayers);
  const Result<int> last =
      dash == text.size() ? first : ParseNumber(text.substr(dash + 1), kLayers);
  if (!first || !last || *last < *first) {
    return Error{fmt::format("{} are no layers; write one as 3, several as 0-7", Quote(text))};
  }
  return std::pair(*first, *last);
}

class Gantt : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddPath(app, "TRACE", trace_path_, "File that --trace has written ('-': stdin)");
    AddPath(app, "--out", out_path_, "Where to write the picture")
        ->type_name("FILE.svg")
        ->check(WritableFile())
        ->required();
    AddNumber(app, "--step", step_, {0, kPositive.max}, "Which of its steps (default: the first)");
    AddText(app, "--layers", layers_, "Only these layers: 3, or 0-7 (default: the whole step)")
        ->type_name("A-B")
        ->check(ParsedBy(ParseLayers));
    AddNumber(app, "--width", width_, {400, 100000}, "Of the picture, in pixels (default: 1600)");
  }

  Status Run() override {
    const Result<drawing::Trace> trace = ReadTrace(trace_path_);
    if (!trace) return trace.error();
    const auto num_steps = static_cast<int>(trace->steps.size());
    if (step_ < 0 || step_ >= num_steps) {
      return Error{
          fmt::format("--step {} is not there; {} has {}", step_, trace_path_, ListSteps(*trace))};
    }
    const drawing::TracedStep& step = trace->steps[static_cast<size_t>(step_)];
    if (!layers_) return WriteText(out_path_, GanttSvg(step, width_));
    const auto layers = ParseLayers(*layers_);
    if (!layers) return layers.error();
    const int num_layers = drawing::NumLayers(step.schedule);
    if (layers->second >= num_layers) {
      return Error{fmt::format("--layers {} is out of range; the step has layers 0-{}", *layers_,
                               num_layers - 1)};
    }
    drawing::TracedStep part = SelectLayers(step, layers->first, layers->second);
    part.name += ", layers " + *layers_;
    return WriteText(out_path_, GanttSvg(part, width_));
  }

 private:
  std::string trace_path_;
  std::string out_path_;
  int step_ = 0;
  std::optional<std::string> layers_;
  int width_ = drawing::kGanttWidth;
};

}  // namespace

std::unique_ptr<Command> MakeGantt() { return std::make_unique<Gantt>(); }

}  // namespace convene::cli
