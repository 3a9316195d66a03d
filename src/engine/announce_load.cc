#include "engine/announce_load.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.h"

namespace convene::engine {
namespace {

using nlohmann::json;

constexpr const char* kDirectory = "directory";
constexpr const char* kCosts = "costs";
constexpr const char* kTrial = "trial";
constexpr const char* kFewer = "fewer";

void Tell(comm::Group& group, const json& message) {
  const std::string text = message.dump();
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  group.Broadcast(0, &bytes, "announcing what to do");
}

}  // namespace

void AnnounceLoad(comm::Group& group, const std::string& directory, const LoadOptions& options) {
  json message = ToJson(options);
  message[kDirectory] = directory;
  Tell(group, message);
}

void AnnounceCosts(comm::Group& group, const CostsWish& wish) {
  Tell(group, {{kCosts,
                {{"weights", static_cast<int>(wish.weights)},
                 {"wire", static_cast<int>(wish.wire)},
                 {"int8_kv", wish.int8_kv},
                 {"num_threads", wish.num_threads ? json(*wish.num_threads) : json()},
                 {"memory_budget", wish.memory_budget ? json(*wish.memory_budget) : json()}}}});
}

void AnnounceTrial(comm::Group& group, const std::string& directory, const std::string& question) {
  if (group.size() > 1) Tell(group, {{kTrial, question}, {kDirectory, directory}});
}

void AnnounceFewer(comm::Group& group, int num_ranks) { Tell(group, {{kFewer, num_ranks}}); }

void Dismiss(comm::Group& group) {
  if (group.size() > 1) Tell(group, json::object());
}

std::optional<Work> WaitForWork(comm::Group& group) {
  std::vector<std::byte> bytes;
  group.Broadcast(0, &bytes, "waiting for rank 0");
  const json message =
      json::parse(reinterpret_cast<const char*>(bytes.data()),
                  reinterpret_cast<const char*>(bytes.data() + bytes.size()), nullptr, false);
  CHECK(message.is_object(), "a message of {} bytes from rank 0", bytes.size());
  if (message.empty()) return std::nullopt;
  if (message.contains(kCosts)) {
    const json& costs = message[kCosts];
    CostsWish wish{.weights = static_cast<kernels::WeightFormat>(costs["weights"].get<int>()),
                   .wire = static_cast<comm::WireFormat>(costs["wire"].get<int>()),
                   .int8_kv = costs["int8_kv"].get<bool>()};
    if (costs["num_threads"].is_number()) wish.num_threads = costs["num_threads"].get<int>();
    if (costs["memory_budget"].is_number()) {
      wish.memory_budget = costs["memory_budget"].get<uint64_t>();
    }
    return wish;
  }
  if (message.contains(kFewer)) return AnnouncedFewer{message[kFewer].get<int>()};
  if (message.contains(kTrial)) {
    return AnnouncedTrial{.directory = message[kDirectory].get<std::string>(),
                          .question = message[kTrial].get<std::string>()};
  }
  AnnouncedLoad load{.directory = message[kDirectory].get<std::string>(),
                     .options = LoadOptionsFromJson(message)};
  load.options.group = &group;
  return load;
}

}  // namespace convene::engine
