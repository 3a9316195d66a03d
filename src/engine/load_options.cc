#include "engine/load_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/check.h"

namespace convene::engine {
namespace {

using nlohmann::json;

// The one list of the fields that travel; `visit` takes a name and a field.
template <typename Options, typename Visit>
void ForEachField(Options& options, const Visit& visit) {
  visit("weights", options.formats.weights);
  visit("int4_group", options.formats.int4_group);
  visit("activations", options.formats.activations);
  visit("kv", options.formats.kv);
  visit("numa", options.numa);
  visit("num_threads", options.num_threads);
  visit("may_have_fewer_threads", options.may_have_fewer_threads);
  visit("context", options.context);
  visit("max_step_tokens", options.max_step_tokens);
  visit("max_sequences", options.max_sequences);
  visit("kv_memory_s", options.kv_memory_s);
  visit("expert_capacity", options.expert_capacity);
  visit("memory_budget", options.memory_budget);
  visit("gpu", options.gpu);
  visit("device_memory_budget", options.device_memory_budget);
  visit("offload", options.offload);
  visit("page_directory", options.page_directory);
  visit("spill_directory", options.spill_directory);
  visit("page_eviction", options.page_eviction);
  visit("plan", options.plan);
  visit("router_skew", options.experiment.router.skew);
  visit("router_experts", options.experiment.router.num_experts);
  visit("router_shares", options.experiment.router.shares);
  visit("record", options.record);
  visit("random_weights", options.random_weights);
  visit("verify_checkpoint", options.verify_checkpoint);
}

template <typename T>
json FieldToJson(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<int>(value);
  } else {
    return value;
  }
}

template <typename T>
json FieldToJson(const std::optional<T>& value) {
  return value ? FieldToJson(*value) : json();
}

json FieldToJson(const plan::Plan& plan) { return plan::ToJson(plan); }

template <typename T>
void ReadField(const json& field, T& value) {
  if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(field.get<int>());
  } else {
    value = field.get<T>();
  }
}

template <typename T>
void ReadField(const json& field, std::optional<T>& value) {
  value.reset();
  if (!field.is_null()) ReadField(field, value.emplace());
}

void ReadField(const json& field, plan::Plan& plan) {
  Result<plan::Plan> read = plan::PlanFromJson(field);
  CHECK(read.ok(), "{}", read.error().message);
  plan = *std::move(read);
}

}  // namespace

json ToJson(const LoadOptions& options) {
  json message = json::object();
  ForEachField(options,
               [&](const char* name, const auto& field) { message[name] = FieldToJson(field); });
  return message;
}

LoadOptions LoadOptionsFromJson(const json& message) {
  LoadOptions options;
  ForEachField(options, [&](const char* name, auto& field) { ReadField(message.at(name), field); });
  return options;
}

Status CheckLoadOptions(const LoadOptions& options) {
  const bool spills = !options.spill_directory.empty() && options.spill_directory != kNoSpill;
  if (spills && options.group != nullptr && options.group->size() > 1) {
    return Error{
        "keys and values of several ranks cannot be kept on a disk: leave --spill-dir out, or "
        "start "
        "one process"};
  }
  if (options.gpu && options.group != nullptr && options.group->size() > 1) {
    return Error{
        "a GPU computes for one process alone yet: leave --device out, or start one process"};
  }
  if (options.random_weights && options.verify_checkpoint) {
    return Error{
        "there is nothing to verify of random weights: leave --verify-checkpoint or "
        "--random-weights out"};
  }
  if (options.offload == Offload::kLayers && !options.gpu) {
    return Error{
        "--offload layers is of a GPU: give --device cuda as well, or --offload pages, which reads "
        "experts from a disk"};
  }
  if (options.offload == Offload::kMapped && (options.gpu || options.random_weights)) {
    return Error{
        "--offload mmap is of weights in a file that the CPU computes with: leave it out beside "
        "--device or --random-weights"};
  }
  if (options.device_memory_budget && !options.gpu) {
    return Error{"--device-memory-budget is of a GPU: give --device cuda as well, or leave it out"};
  }
  if (options.context && (*options.context < 2 || *options.context > kMaxContext)) {
    return Error{fmt::format("a context of {} tokens is out of range; it must be 2 to {}",
                             *options.context, kMaxContext)};
  }
  if (options.max_step_tokens < 1 || options.max_step_tokens > kMaxStepTokens) {
    return Error{fmt::format("chunks of {} tokens are out of range; they must be 1 to {}",
                             options.max_step_tokens, kMaxStepTokens)};
  }
  if (options.max_sequences < 1) {
    return Error{fmt::format("a batch of {} sequences is out of range; it must be at least 1",
                             options.max_sequences)};
  }
  // A step has a token of each sequence, of which each group of ranks has its part.
  const int num_groups = options.plan.layout.attention_dp;
  if (options.plan.sequences_of_group(options.max_sequences) > options.max_step_tokens) {
    const std::string most =
        num_groups > 1 ? fmt::format("{}, the {} tokens of a chunk for each of {} groups of ranks",
                                     int64_t{options.max_step_tokens} * num_groups,
                                     options.max_step_tokens, num_groups)
                       : fmt::format("the {} tokens of a chunk", options.max_step_tokens);
    return Error{fmt::format(
        "a batch of {} sequences is out of range; it must be 1 to {}: raise --chunk, or run fewer "
        "together (--max-batch; of bench --batch)",
        options.max_sequences, most)};
  }
  return {};
}

int ContextOf(const model::ModelSpec& spec, const LoadOptions& options) {
  return options.context.value_or(std::min(spec.max_positions, kDefaultContext));
}

Status CheckContext(const model::ModelSpec& spec, const LoadOptions& options) {
  if (!options.context || *options.context <= spec.max_positions) return {};
  return Error{
      fmt::format("a context of {} tokens is longer than the {} positions that this model has "
                  "(max_position_embeddings in its config.json); use at most that many",
                  *options.context, spec.max_positions)};
}

}  // namespace convene::engine
