// Finds the chat template and the special tokens in a checkpoint's directory.
#include <fmt/format.h>

#include "base/is_there.h"
#include "base/json.h"
#include "base/read_file.h"
#include "jinja/limits.h"
#include "text/chat_template.h"

namespace convene::text {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxConfigBytes = 64 << 20;
constexpr const char* kDefault = "default";
constexpr const char* kToolUse = "tool_use";

// Sources by name; transformers takes "tool_use" where there are tools, else "default".
using Sources = std::map<std::string, std::string>;

// The text of a file; none where it does not exist.
Result<std::optional<std::string>> ReadIfExists(const std::string& path, uint64_t max_bytes) {
  if (!IsThere(path)) return std::optional<std::string>();
  Result<std::string> contents = ReadFile(path, max_bytes);
  if (!contents) return contents.error();
  return std::optional(*std::move(contents));
}

// An object, empty where the file does not exist.
Result<json> ReadJsonObject(const std::string& path) {
  const auto contents = ReadIfExists(path, kMaxConfigBytes);
  if (!contents) return contents.error();
  if (!contents->has_value()) return json::object();
  Result<json> document = ParseJson(**contents);
  if (!document) return document.error().At(path);
  if (!document->is_object()) return Error{fmt::format("{} must be a JSON object", path)};
  return document;
}

Result<Sources> ReadTemplateFiles(const std::string& directory) {
  Sources sources;
  const std::pair<const char*, std::string> files[] = {
      {kDefault, directory + "/chat_template.jinja"},
      {kToolUse, directory + "/additional_chat_templates/tool_use.jinja"}};
  for (const auto& [name, path] : files) {
    auto contents = ReadIfExists(path, jinja::kMaxSourceBytes);
    if (!contents) return contents.error();
    if (contents->has_value()) sources[name] = **std::move(contents);
  }
  return sources;
}

// chat_template is the source, or a list of {"name": ..., "template": ...}.
Result<Sources> TemplatesOfConfig(const json& config, const std::string& path) {
  Sources sources;
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return sources;
  if (found->is_string()) {
    sources[kDefault] = found->get<std::string>();
    return sources;
  }
  if (!found->is_array()) {
    return Error{fmt::format("{}: chat_template must be a string or a list, not {}", path,
                             found->type_name())};
  }
  for (const json& entry : *found) {
    const bool is_valid = entry.is_object() && entry.contains("name") &&
                          entry["name"].is_string() && entry.contains("template") &&
                          entry["template"].is_string();
    if (!is_valid) {
      return Error{fmt::format(
          "{}: an entry of chat_template must have the strings \"name\" and \"template\"", path)};
    }
    sources[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
  }
  return sources;
}

// Every "..._token" that is a string or an object with its content.
void ReadSpecialTokens(const json& document, ChatTemplate::SpecialTokens* tokens) {
  for (const auto& [key, value] : document.items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string()) {
      (*tokens)[key] = value.get<std::string>();
    } else if (value.is_object() && value.contains("content") && value["content"].is_string()) {
      (*tokens)[key] = value["content"].get<std::string>();
    }
  }
}

}  // namespace

Result<ChatTemplate> ChatTemplate::Load(const std::string& directory) {
  const std::string config_path = directory + "/tokenizer_config.json";
  const Result<json> config = ReadJsonObject(config_path);
  if (!config) return config.error();
  SpecialTokens special_tokens;
  ReadSpecialTokens(*config, &special_tokens);
  if (!config->contains("added_tokens_decoder")) {  // else the older file is not read
    const Result<json> map = ReadJsonObject(directory + "/special_tokens_map.json");
    if (!map) return map.error();
    ReadSpecialTokens(*map, &special_tokens);
  }

  Result<Sources> sources = ReadTemplateFiles(directory);
  if (sources && sources->empty()) sources = TemplatesOfConfig(*config, config_path);
  if (!sources) return sources.error();
  const auto chosen = sources->find(kDefault);
  if (chosen == sources->end()) {
    return NotFound(fmt::format(
        "{} holds no chat template{}: neither chat_template.jinja nor \"chat_template\" in "
        "tokenizer_config.json; prompts can be given as plain text only",
        directory, sources->empty() ? "" : " named \"default\""));
  }
  Result<ChatTemplate> result = Parse(chosen->second, std::move(special_tokens));
  if (!result) return result.error().At(directory);
  if (const auto tool_use = sources->find(kToolUse); tool_use != sources->end()) {
    Result<ChatTemplate> with_tools = Parse(tool_use->second);
    if (!with_tools) return with_tools.error().At(directory);
    result->with_tools_ = with_tools->default_;
    result->source_ += with_tools->source_;
  }
  return result;
}

}  // namespace convene::text
