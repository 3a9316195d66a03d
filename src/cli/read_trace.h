// Traces as commands read them: from a file that --trace has written.
#pragma once

#include <string>

#include "base/result.h"
#include "drawing/trace.h"

namespace convene::cli {

// Errors: no such file, not a trace, a trace without steps.
Result<drawing::Trace> ReadTrace(const std::string& path);

// "0: prefill, 512 tokens; 1: decode, ...".
std::string ListSteps(const drawing::Trace& trace);

}  // namespace convene::cli
