#include "openai/batch_line.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"
#include "base/quote.h"
#include "openai/field_reader.h"

namespace convene::openai {

using nlohmann::ordered_json;

Result<BatchLine> ParseBatchLine(std::string_view text, const engine::SamplingOptions& defaults) {
  const Result<ordered_json> json = ParseOrderedJson(text);
  if (!json) return json.error();
  if (!json->is_object()) return Error{"a line must be a JSON object"};
  BatchLine line;
  FieldReader fields(*json, "");
  line.custom_id = fields.String("custom_id").value_or("");
  if (line.custom_id.empty()) fields.Fail("custom_id", "is missing");
  const std::string method = fields.String("method").value_or("POST");
  if (method != "POST") {
    fields.Fail("method", fmt::format("is {}; it must be POST", Quote(method)));
  }
  const std::string url = fields.String("url").value_or("");
  const bool is_chat = url == kChatUrl;
  if (!is_chat && url != kCompletionsUrl) {
    fields.Fail("url",
                fmt::format("is {}; it must be {} or {}", Quote(url), kChatUrl, kCompletionsUrl));
  }
  const ordered_json* body = fields.Find("body");
  if (body == nullptr || !body->is_object()) fields.Fail("body", "must be an object");
  if (fields.status()) return fields.status()->error;

  engine::SamplingOptions with_seed = defaults;
  with_seed.seed = SeedOf(line.custom_id);
  auto parsed = ParseGenerationBody(*body, is_chat, BodyOrigin::kBatchLine, with_seed);
  if (const auto* wrong = std::get_if<FieldError>(&parsed)) return wrong->error;
  line.body = std::get<GenerationBody>(std::move(parsed));
  return line;
}

uint64_t SeedOf(std::string_view custom_id) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : custom_id) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  }
  return hash;
}

std::optional<std::string> CustomIdOf(std::string_view line) {
  const Result<ordered_json> json = ParseOrderedJson(line);
  if (!json || !json->is_object()) return std::nullopt;
  const auto found = json->find("custom_id");
  if (found == json->end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

}  // namespace convene::openai
