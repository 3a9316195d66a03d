#include "cli/read_trace.h"

#include <fmt/format.h>

#include "cli/output.h"

namespace convene::cli {

Result<drawing::Trace> ReadTrace(const std::string& path) {
  const Result<std::string> text = ReadText(path);
  if (!text) return text.error();
  Result<drawing::Trace> trace = drawing::TraceFromJson(*text);
  if (!trace) {
    return Error{
        fmt::format("{}: {}; give a file that --trace has written", path, trace.error().message)};
  }
  if (trace->steps.empty()) {
    return Error{fmt::format("{} holds no steps: the command that wrote it computed none", path)};
  }
  return trace;
}

std::string ListSteps(const drawing::Trace& trace) {
  std::string list;
  for (size_t i = 0; i < trace.steps.size(); ++i) {
    list += fmt::format("{}{}: {}", i == 0 ? "" : "; ", i, trace.steps[i].name);
  }
  return list;
}

}  // namespace convene::cli
