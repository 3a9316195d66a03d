#include "engine/choose_formats.h"

#include <fmt/format.h>

namespace convene::engine {
namespace {

using kernels::ActivationFormat;
using kernels::KvFormat;
using kernels::WeightFormat;

Status Check(const runtime::Formats& formats) {
  const WeightFormat weights = formats.weights.matrices;
  const bool f32 = weights == WeightFormat::kF32;
  if (formats.weights.group != 32 && formats.weights.group != 64 && formats.weights.group != 128) {
    return Error{fmt::format("int4 groups of {} columns are not supported; use 32, 64 or 128",
                             formats.weights.group)};
  }
  if (f32 != (formats.activations == ActivationFormat::kF32) ||
      (formats.activations == ActivationFormat::kInt8 && !kernels::IsInteger(weights))) {
    return Error{fmt::format("{} weights do not go with {} activations; leave --activations out{}",
                             Name(weights),
                             formats.activations == ActivationFormat::kInt8 ? "int8" : "bf16",
                             f32 ? "" : ", or use --weights int8 or int4")};
  }
  if (f32 != (formats.kv == KvFormat::kF32)) {
    return Error{"with --weights f32 the KV cache is f32, too; leave --kv-cache out"};
  }
  return {};
}

}  // namespace

Result<runtime::Formats> ResolveFormats(const FormatWishes& wishes, WeightFormat weights) {
  runtime::Formats formats = runtime::DefaultFormats(weights);
  formats.weights.group = wishes.int4_group.value_or(formats.weights.group);
  if (wishes.activations) formats.activations = *wishes.activations;
  if (wishes.kv) formats.kv = *wishes.kv;
  if (Status checked = Check(formats); !checked) return checked.error();
  return formats;
}

Result<ChosenFormats> ChooseFormats(
    const FormatWishes& wishes,
    const std::function<Result<MemoryPlan>(const runtime::Formats&)>& plan) {
  if (wishes.weights) {
    const Result<runtime::Formats> formats = ResolveFormats(wishes, *wishes.weights);
    if (!formats) return formats.error();
    const Result<MemoryPlan> memory = plan(*formats);
    if (!memory) return memory.error();
    return ChosenFormats{*formats, *memory, ""};
  }
  std::string reason;
  std::optional<Error> last_error;
  for (const WeightFormat weights :
       {WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kInt4}) {
    const Result<runtime::Formats> formats = ResolveFormats(wishes, weights);
    if (!formats) {
      // Int8 activations exclude bf16 weights: then those are no candidate.
      last_error = formats.error();
      continue;
    }
    const Result<MemoryPlan> memory = plan(*formats);
    if (memory) {
      return ChosenFormats{
          *formats, *memory,
          fmt::format("{} weights, the most precise that fit{}", Name(weights), reason)};
    }
    last_error = memory.error();
    reason += fmt::format("{}{} would not", reason.empty() ? ": " : ", ", Name(weights));
  }
  return *last_error;
}

}  // namespace convene::engine
