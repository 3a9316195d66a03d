// Which formats a model is run in: what was asked for, what goes together, and for `auto` the most
// precise weights for which there is memory.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/memory_plan.h"
#include "runtime/formats.h"

namespace convene::engine {

struct FormatWishes {
  std::optional<kernels::WeightFormat> weights = {};          // unset: auto
  std::optional<int> int4_group = {};                         // 32 (if unset), 64 or 128
  std::optional<kernels::ActivationFormat> activations = {};  // unset: DefaultFormats
  std::optional<kernels::KvFormat> kv = {};                   // unset: DefaultFormats
};

// The formats that `wishes` give with these weights. Errors: formats that do not go together, a
// number of columns per int4 scale that no kernel has.
Result<runtime::Formats> ResolveFormats(const FormatWishes& wishes, kernels::WeightFormat weights);

struct ChosenFormats {
  runtime::Formats formats;
  MemoryPlan memory;
  std::string reason;  // why `auto` took these, as a line for people; otherwise empty
};

// `plan` returns the memory that formats need. With `auto`, bf16, int8 and int4 are tried in this
// order. Errors: those of ResolveFormats; too little memory (that of the last format tried).
Result<ChosenFormats> ChooseFormats(
    const FormatWishes& wishes,
    const std::function<Result<MemoryPlan>(const runtime::Formats&)>& plan);

}  // namespace convene::engine
