#include "engine/same_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/read_file.h"
#include "checkpoint/model_files.h"
#include "comm/agree.h"

namespace convene::engine {
namespace {

// Ranks with other numbers do not understand each other.
constexpr int kProtocol = 2;

// All that checkpoint/, weights/ and text/ read of a model besides its weights.
constexpr const char* kFiles[] = {"config.json",
                                  "generation_config.json",
                                  "convene.json",
                                  "tokenizer.json",
                                  "tokenizer_config.json",
                                  "special_tokens_map.json",
                                  "vocab.json",
                                  "merges.txt",
                                  "chat_template.jinja",
                                  "additional_chat_templates/tool_use.jinja"};
constexpr uint64_t kMaxFileBytes = uint64_t{512} << 20;  // as the tokenizer's

Result<std::vector<NamedDigest>> DigestFiles(const std::string& directory) {
  // Its errors say best what a directory is that is none.
  const auto config = checkpoint::ReadConfigFile(directory);
  if (!config) return config.error();
  std::vector<NamedDigest> digests;
  if (config->path == directory) {  // a bare config.json, of a model with random weights
    const std::string text = config->json.dump();
    digests.push_back(NamedDigest{"config.json", DigestOf(std::as_bytes(std::span(text)))});
    return digests;
  }
  for (const char* name : kFiles) {
    const std::string path = (std::filesystem::path(directory) / name).string();
    NamedDigest& of_file = digests.emplace_back(NamedDigest{name});
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    const Result<std::string> content = ReadFile(path, kMaxFileBytes);
    if (!content) return content.error();
    of_file.digest = DigestOf(std::as_bytes(std::span(*content)));
  }
  return digests;
}

}  // namespace

Status AgreeOnFiles(comm::Group& group, const std::string& directory) {
  if (const Status same =
          comm::AgreeOnSame(group, fmt::to_string(kProtocol), "the version of convene");
      !same) {
    return same;
  }
  const Result<std::vector<NamedDigest>> digests = DigestFiles(directory);
  const Status mine = digests ? Status() : Status(digests.error());
  if (const Status all = comm::AgreeOnSuccess(group, mine); !all) return all;
  return comm::AgreeOnDigests(group, *digests, "file");
}

Status AgreeOnTensors(comm::Group& group, std::span<const NamedDigest> digests) {
  return comm::AgreeOnDigests(group, digests, "tensor");
}

bool HaveSameFiles(comm::Group& group, const std::string& identities) {
  const std::string mine = comm::MachineName() + "\n" + identities;
  const auto all = group.AllGather(std::as_bytes(std::span(mine)), "comparing files");
  return std::all_of(all.begin(), all.end(), [&](const auto& other) { return other == all[0]; });
}

}  // namespace convene::engine
