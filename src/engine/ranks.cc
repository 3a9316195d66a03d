#include "engine/ranks.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.h"

namespace convene::engine {
namespace {

using nlohmann::json;

template <typename T>
json OrNull(const std::optional<T>& value) {
  return value ? json(static_cast<int>(*value)) : json();
}

template <typename T>
std::optional<T> FromOrNull(const json& value) {
  return value.is_null() ? std::optional<T>() : std::optional<T>(static_cast<T>(value.get<int>()));
}

json ToJson(const std::string& directory, const LoadOptions& options) {
  return {{"directory", directory},
          {"weights", OrNull(options.formats.weights)},
          {"int4_group", OrNull(options.formats.int4_group)},
          {"activations", OrNull(options.formats.activations)},
          {"kv", OrNull(options.formats.kv)},
          {"numa", static_cast<int>(options.numa)},
          {"num_threads", OrNull(options.num_threads)},
          {"context", OrNull(options.context)},
          {"max_step_tokens", options.max_step_tokens},
          {"max_sequences", options.max_sequences},
          {"expert_capacity", options.expert_capacity},
          {"plan", plan::ToJson(options.plan)},
          {"router_skew", options.router.skew},
          {"router_experts", options.router.num_experts},
          {"record", options.record},
          {"verify_checkpoint", options.verify_checkpoint}};
}

// Of ToJson's making.
LoadOptions OptionsFromJson(const json& message) {
  LoadOptions options;
  options.formats.weights = FromOrNull<kernels::WeightFormat>(message["weights"]);
  options.formats.int4_group = FromOrNull<int>(message["int4_group"]);
  options.formats.activations = FromOrNull<kernels::ActivationFormat>(message["activations"]);
  options.formats.kv = FromOrNull<kernels::KvFormat>(message["kv"]);
  options.numa = static_cast<hardware::NumaPolicy>(message["numa"].get<int>());
  options.num_threads = FromOrNull<int>(message["num_threads"]);
  options.context = FromOrNull<int>(message["context"]);
  options.max_step_tokens = message["max_step_tokens"].get<int>();
  options.max_sequences = message["max_sequences"].get<int>();
  options.expert_capacity = message["expert_capacity"].get<int>();
  options.router = {.skew = message["router_skew"].get<double>(),
                    .num_experts = message["router_experts"].get<int>()};
  options.record = message["record"].get<bool>();
  options.verify_checkpoint = message["verify_checkpoint"].get<bool>();
  const Result<plan::Plan> plan = plan::PlanFromJson(message["plan"]);
  CHECK(plan.ok(), "{}", plan.error().message);
  options.plan = *plan;
  return options;
}

void Tell(comm::Group& group, const json& message) {
  const std::string text = message.dump();
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  group.Broadcast(0, &bytes, "announcing what to load");
}

}  // namespace

void AnnounceLoad(comm::Group& group, const std::string& directory, const LoadOptions& options) {
  Tell(group, ToJson(directory, options));
}

void Dismiss(comm::Group& group) {
  if (group.size() > 1) Tell(group, json::object());
}

Status FollowRankZero(comm::Group& group, const std::string& directory) {
  Status last;
  for (;;) {
    std::vector<std::byte> bytes;
    group.Broadcast(0, &bytes, "waiting for rank 0");
    const json message =
        json::parse(reinterpret_cast<const char*>(bytes.data()),
                    reinterpret_cast<const char*>(bytes.data() + bytes.size()), nullptr, false);
    CHECK(message.is_object(), "a message of {} bytes from rank 0", bytes.size());
    if (message.empty()) return last;
    LoadOptions options = OptionsFromJson(message);
    options.group = &group;
    const Result<std::unique_ptr<LoadedModel>> model = LoadedModel::Load(
        directory.empty() ? message["directory"].get<std::string>() : directory, options, {});
    if (!model) {
      last = model.error();
      continue;
    }
    (*model)->transformer().FollowSteps();
  }
}

}  // namespace convene::engine
