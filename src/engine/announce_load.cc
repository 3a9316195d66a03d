#include "engine/announce_load.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.h"

namespace convene::engine {
namespace {

using nlohmann::json;

constexpr const char* kDirectory = "directory";

void Tell(comm::Group& group, const json& message) {
  const std::string text = message.dump();
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  group.Broadcast(0, &bytes, "announcing what to load");
}

}  // namespace

void AnnounceLoad(comm::Group& group, const std::string& directory, const LoadOptions& options) {
  json message = ToJson(options);
  message[kDirectory] = directory;
  Tell(group, message);
}

void Dismiss(comm::Group& group) {
  if (group.size() > 1) Tell(group, json::object());
}

std::optional<AnnouncedLoad> WaitForLoad(comm::Group& group) {
  std::vector<std::byte> bytes;
  group.Broadcast(0, &bytes, "waiting for rank 0");
  const json message =
      json::parse(reinterpret_cast<const char*>(bytes.data()),
                  reinterpret_cast<const char*>(bytes.data() + bytes.size()), nullptr, false);
  CHECK(message.is_object(), "a message of {} bytes from rank 0", bytes.size());
  if (message.empty()) return std::nullopt;
  AnnouncedLoad load{.directory = message[kDirectory].get<std::string>(),
                     .options = LoadOptionsFromJson(message)};
  load.options.group = &group;
  return load;
}

}  // namespace convene::engine
