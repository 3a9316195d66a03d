#include "openai/batch_line.h"

#include <fmt/format.h>

#include <limits>

#include "base/json.h"
#include "base/quote.h"
#include "openai/batch_fields.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;

// Reads the fields of one JSON object; the first thing wrong is kept.
class Fields {
 public:
  Fields(const ordered_json& object, std::string_view where) : object_(object), where_(where) {}

  const Status& status() const { return status_; }

  // Null where the field is absent or null.
  const ordered_json* Find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<std::string> String(const char* name) {
    return Get<std::string>(
        name, [](const auto& value) { return value.is_string(); }, "a string");
  }

  std::optional<double> Number(const char* name, engine::SamplingRange range) {
    const auto fits = [&](const ordered_json& value) {
      return value.is_number() && value.get<double>() >= range.min &&
             value.get<double>() <= range.max;
    };
    return Get<double>(name, fits, fmt::format("a number from {} to {}", range.min, range.max));
  }

  std::optional<int64_t> Integer(const char* name, int64_t lowest, int64_t highest) {
    const auto fits = [&](const ordered_json& value) {
      const bool is_beyond_64_bits =  // of a signed integer
          value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX};
      return value.is_number_integer() && !is_beyond_64_bits && value.get<int64_t>() >= lowest &&
             value.get<int64_t>() <= highest;
    };
    return Get<int64_t>(name, fits, fmt::format("an integer from {} to {}", lowest, highest));
  }

  std::optional<bool> Bool(const char* name) {
    return Get<bool>(
        name, [](const auto& value) { return value.is_boolean(); }, "true or false");
  }

  void Fail(std::string message) {
    if (status_) status_ = Error{std::move(message)};
  }

 private:
  template <typename T, typename Fits>
  std::optional<T> Get(const char* name, Fits fits, std::string_view wanted) {
    const ordered_json* value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (fits(*value)) return value->get<T>();
    Fail(fmt::format("{}{} must be {}", where_, name, wanted));
    return std::nullopt;
  }

  const ordered_json& object_;
  std::string_view where_;
  Status status_;
};

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr int kMaxTopLogprobs = 20;

void ReadSampling(Fields& body, engine::Request* request) {
  engine::GivenSampling given;
  given.temperature = body.Number("temperature", engine::kTemperatures);
  given.top_p = body.Number("top_p", engine::kProbabilities);
  given.min_p = body.Number("min_p", engine::kProbabilities);
  if (const auto top_k = body.Integer("top_k", 0, kMaxTokens)) {
    given.top_k = static_cast<int>(*top_k);
  }
  given.repetition_penalty = body.Number("repetition_penalty", engine::kRepetitionPenalties);
  engine::SamplingOptions& sampling = request->sampling;
  sampling = engine::MergeSampling(sampling, given);
  const auto seed = body.Integer("seed", INT64_MIN, INT64_MAX);
  if (seed) sampling.seed = static_cast<uint64_t>(*seed);
  request->ignore_eos = body.Bool("ignore_eos").value_or(false);
  // Two names of one thing.
  const auto old_limit = body.Integer("max_tokens", 1, kMaxTokens);
  const auto limit = body.Integer("max_completion_tokens", 1, kMaxTokens);
  if (limit && old_limit && *limit != *old_limit) {
    body.Fail(fmt::format("body.max_tokens is {} and body.max_completion_tokens {}; give one",
                          *old_limit, *limit));
  }
  if (limit || old_limit) request->max_tokens = static_cast<int>(limit ? *limit : *old_limit);
}

void ReadStop(Fields& body, engine::Request* request) {
  const ordered_json* stop = body.Find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    request->stop.push_back(stop->get<std::string>());
    return;
  }
  if (!stop->is_array()) return body.Fail("body.stop must be a string or an array of strings");
  for (const ordered_json& text : *stop) {
    if (!text.is_string()) return body.Fail("body.stop must be a string or an array of strings");
    request->stop.push_back(text.get<std::string>());
  }
}

void ReadChat(Fields& body, BatchLine* line) {
  const ordered_json* messages = body.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return body.Fail("body.messages must be an array of at least one message");
  }
  for (const ordered_json& message : *messages) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return body.Fail("each of body.messages must be an object with a role");
    }
  }
  line->messages = *messages;
  const ordered_json* choice = body.Find("tool_choice");
  if (choice != nullptr && *choice != "auto" && *choice != "none") {
    return body.Fail("body.tool_choice must be absent, auto or none: no call can be enforced");
  }
  if (const ordered_json* tools = body.Find("tools")) {
    if (!tools->is_array()) return body.Fail("body.tools must be an array");
    if (!tools->empty()) line->tools = *tools;
  }
  const bool wants_logprobs = body.Bool("logprobs").value_or(false);
  const auto top = body.Integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !wants_logprobs) return body.Fail("body.top_logprobs needs body.logprobs = true");
  if (wants_logprobs) line->request.num_logprobs = static_cast<int>(top.value_or(0));
}

void ReadCompletion(Fields& body, BatchLine* line) {
  const ordered_json* prompt = body.Find("prompt");
  const auto logprobs = body.Integer("logprobs", 0, kMaxTopLogprobs);
  if (logprobs) line->request.num_logprobs = static_cast<int>(*logprobs);
  line->request.continues_prompt = true;
  if (prompt != nullptr && prompt->is_string()) {
    line->prompt = prompt->get<std::string>();
    return;
  }
  if (prompt == nullptr || !prompt->is_array() || prompt->empty()) {
    return body.Fail("body.prompt must be a string or an array of token ids");
  }
  std::vector<int32_t> ids;
  for (const ordered_json& id : *prompt) {
    if (!id.is_number_integer() || id.get<double>() < 0 ||
        id.get<double>() > static_cast<double>(kMaxTokens)) {
      return body.Fail("body.prompt must be one string or an array of token ids");
    }
    ids.push_back(id.get<int32_t>());
  }
  line->prompt = std::move(ids);
}

}  // namespace

Result<BatchLine> ParseBatchLine(std::string_view text, const engine::SamplingOptions& defaults) {
  const Result<ordered_json> json = ParseOrderedJson(text);
  if (!json) return json.error();
  if (!json->is_object()) return Error{"a line must be a JSON object"};
  BatchLine line;
  line.request.sampling = defaults;
  Fields fields(*json, "");
  line.custom_id = fields.String("custom_id").value_or("");
  if (line.custom_id.empty()) fields.Fail("custom_id is missing");
  const std::string method = fields.String("method").value_or("POST");
  if (method != "POST") fields.Fail(fmt::format("method is {}; it must be POST", Quote(method)));
  const std::string url = fields.String("url").value_or("");
  line.is_chat = url == kChatUrl;
  if (!line.is_chat && url != kCompletionsUrl) {
    fields.Fail(
        fmt::format("url is {}; it must be {} or {}", Quote(url), kChatUrl, kCompletionsUrl));
  }
  const ordered_json* object = fields.Find("body");
  if (object == nullptr || !object->is_object()) fields.Fail("body must be an object");
  if (!fields.status()) return fields.status().error();

  line.request.sampling.seed = SeedOf(line.custom_id);
  Fields body(*object, "body.");
  line.model = body.String("model").value_or("");
  if (Status known = CheckBatchFields(*object, line.is_chat); !known) return known.error();
  ReadSampling(body, &line.request);
  ReadStop(body, &line.request);
  if (line.is_chat) {
    ReadChat(body, &line);
  } else {
    ReadCompletion(body, &line);
  }
  if (!body.status()) return body.status().error();
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
