#include "openai/responses_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/closest_name.h"
#include "base/quote.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;

// Fields of this API and what they are called in a chat; the same: they mean the same.
struct SameField {
  const char* name;
  const char* in_chat;
};
constexpr SameField kSameFields[] = {{"model", "model"},
                                     {"max_output_tokens", "max_completion_tokens"},
                                     {"temperature", "temperature"},
                                     {"top_p", "top_p"},
                                     {"stream", "stream"},
                                     {"stream_options", "stream_options"},
                                     {"parallel_tool_calls", "parallel_tool_calls"},
                                     {"top_k", "top_k"},
                                     {"min_p", "min_p"},
                                     {"repetition_penalty", "repetition_penalty"},
                                     {"presence_penalty", "presence_penalty"},
                                     {"frequency_penalty", "frequency_penalty"},
                                     {"logit_bias", "logit_bias"},
                                     {"seed", "seed"},
                                     {"stop", "stop"},
                                     {"ignore_eos", "ignore_eos"},
                                     {"chat_template_kwargs", "chat_template_kwargs"},
                                     {"priority", "priority"}};
// Read here.
constexpr const char* kOwnFields[] = {"input",       "instructions", "tools",
                                      "tool_choice", "text",         "reasoning"};

struct NeutralResponseField {
  const char* name;
  ordered_json neutral;
  const char* advice;
};
const std::vector<NeutralResponseField>& NeutralResponseFields() {
  static const std::vector<NeutralResponseField> fields = {
      {"store", false, ": nothing is stored"},
      {"previous_response_id", nullptr, ": nothing is stored; give the earlier items as input"},
      {"conversation", nullptr, ": nothing is stored; give the earlier items as input"},
      {"background", false, ": nothing is stored"},
      {"include", ordered_json::array(), ""},
      {"truncation", "disabled", ""},
      {"max_tool_calls", nullptr, ""},
      {"prompt", nullptr, ""},
      {"context_management", nullptr, ""},
      {"top_logprobs", 0, ": /v1/chat/completions has them"},
  };
  return fields;
}

FieldStatus CheckResponseFields(const ordered_json& body) {
  std::vector<std::string> known(std::begin(kOwnFields), std::end(kOwnFields));
  for (const SameField& field : kSameFields) known.emplace_back(field.name);
  for (const auto& [name, value] : body.items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    if (const auto hint = CheckHint(name, value, name)) {
      if (*hint) return *hint;
      continue;
    }
    for (const NeutralResponseField& neutral : NeutralResponseFields()) {
      if (name != neutral.name) continue;
      if (value.is_null() || value == neutral.neutral) break;
      return FieldError{Error{fmt::format("{} is not supported; it must be absent or {}{}", name,
                                          neutral.neutral.dump(), neutral.advice)},
                        name};
    }
    const bool is_neutral = std::ranges::any_of(
        NeutralResponseFields(),
        [&](const NeutralResponseField& neutral) { return name == neutral.name; });
    if (is_neutral) continue;
    return FieldError{Error{fmt::format("{} is not known, so leave it out{}", Printable(name),
                                        DidYouMean(name, known))},
                      name};
  }
  return std::nullopt;
}

// In place of an item's index.

FieldError Wrong(const char* field, std::string message) {
  return {Error{std::move(message)}, field};
}

// The items of `input` as messages of a chat.
class Conversation {
 public:
  // False: error() says why.
  bool AddItem(const ordered_json& item, size_t idx) {
    item_idx_ = static_cast<int>(idx);
    place_ = fmt::format("input[{}]", idx);
    if (!item.is_object()) return Fail("must be an object");
    const ordered_json type = item.value("type", ordered_json("message"));
    if (type == "message") return HasOnly(item, {"role", "content"}) && AddMessage(item);
    if (type == "function_call") {
      return HasOnly(item, {"call_id", "name", "arguments", "parsed_arguments"}) && AddCall(item);
    }
    if (type == "function_call_output") {
      return HasOnly(item, {"call_id", "output"}) && AddOutput(item);
    }
    if (type == "reasoning") {
      return HasOnly(item, {"summary", "content", "encrypted_content"}) && AddReasoning(item);
    }
    return Fail(fmt::format("is of the type {}, which is not supported", Printable(type.dump())));
  }

  // What is added next is the whole input.
  void BeginWhole() { item_idx_ = MessageItems::kWholeInput; }

  void AddText(const char* role, const ordered_json& text) {
    Add({{"role", role}, {"content", text}});
  }

  ordered_json TakeMessages() { return std::move(messages_); }
  std::vector<MessageItems> TakeItems() { return std::move(items_); }
  const std::string& error() const { return error_; }

 private:
  bool Fail(const std::string& complaint) {
    error_ = place_ + " " + complaint;
    return false;
  }

  ordered_json& Add(ordered_json message) {
    items_.push_back({.item = item_idx_, .calls = {}});
    return messages_.emplace_back(std::move(message));
  }

  // Fields that are null say nothing.
  bool HasOnly(const ordered_json& item, std::initializer_list<std::string_view> fields) {
    for (const auto& [name, value] : item.items()) {
      const bool is_of_all = name == "type" || name == "id" || name == "status";
      if (value.is_null() || is_of_all || std::ranges::find(fields, name) != fields.end()) continue;
      return Fail(fmt::format("has the field {}, which is not known", Quote(name)));
    }
    return true;
  }

  // A string, or an array of parts with text.
  std::optional<ordered_json> TextOf(const ordered_json& content) {
    if (content.is_string()) return content;
    ordered_json parts = ordered_json::array();
    const bool is_array = content.is_array();
    for (const ordered_json& part : is_array ? content : ordered_json::array()) {
      const ordered_json type = part.is_object() ? part.value("type", ordered_json()) : nullptr;
      const bool is_text = type == "input_text" || type == "output_text" || type == "text" ||
                           type == "reasoning_text" || type == "summary_text";
      if (!is_text || !part.contains("text") || !part["text"].is_string()) {
        Fail(fmt::format("has a part of the type {}; only texts are supported",
                         Printable(type.dump())));
        return std::nullopt;
      }
      for (const auto& [name, value] : part.items()) {
        // What an answer says beside its text, what clients write there, and a hint.
        constexpr std::string_view kKnown[] = {"type",     "text",   "annotations",
                                               "logprobs", "parsed", "cache_control"};
        if (value.is_null() || std::ranges::find(kKnown, name) != std::end(kKnown)) continue;
        Fail(fmt::format("has a part with the field {}, which is not known", Quote(name)));
        return std::nullopt;
      }
      parts.push_back({{"type", "text"}, {"text", part["text"]}});
    }
    if (is_array) return parts;
    Fail("must have a text, or an array of parts with texts");
    return std::nullopt;
  }

  bool AddMessage(const ordered_json& item) {
    const ordered_json role = item.value("role", ordered_json());
    if (role != "user" && role != "system" && role != "developer" && role != "assistant") {
      return Fail("must have the role user, system, developer or assistant");
    }
    const auto text = TextOf(item.value("content", ordered_json()));
    if (!text) return false;
    ordered_json& message = Add({{"role", role}, {"content", *text}});
    if (role == "assistant") TakeReasoning(&message);
    return true;
  }

  // Calls are of the message before them, if that is the model's.
  ordered_json& Assistant() {
    if (messages_.empty() || messages_.back()["role"] != "assistant") {
      Add({{"role", "assistant"}, {"content", nullptr}});
    }
    TakeReasoning(&messages_.back());
    return messages_.back();
  }

  bool AddCall(const ordered_json& item) {
    for (const char* name : {"call_id", "name", "arguments"}) {
      if (!item.contains(name) || !item[name].is_string()) {
        return Fail(fmt::format("must have {}, a string", name));
      }
    }
    Assistant()["tool_calls"].push_back(
        {{"id", item["call_id"]},
         {"type", "function"},
         {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}});
    items_.back().calls.push_back(item_idx_);
    return true;
  }

  bool AddOutput(const ordered_json& item) {
    if (!item.contains("call_id") || !item["call_id"].is_string()) {
      return Fail("must have call_id, a string");
    }
    const auto text = TextOf(item.value("output", ordered_json()));
    if (!text) return false;
    Add({{"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", *text}});
    return true;
  }

  // Of the message or the calls behind it.
  bool AddReasoning(const ordered_json& item) {
    for (const char* name : {"content", "summary"}) {
      const auto found = item.find(name);
      if (found == item.end() || found->is_null()) continue;
      const auto text = TextOf(*found);
      if (!text) return false;
      if (!reasoning_.empty()) continue;  // a summary says the same
      if (text->is_string()) {
        reasoning_ = text->get<std::string>();
        continue;
      }
      for (const ordered_json& part : *text) reasoning_ += part["text"].get<std::string>();
    }
    return true;
  }

  void TakeReasoning(ordered_json* message) {
    if (reasoning_.empty()) return;
    (*message)["reasoning_content"] = std::exchange(reasoning_, {});
  }

  ordered_json messages_ = ordered_json::array();
  std::vector<MessageItems> items_;  // of each message
  int item_idx_ = MessageItems::kInstructions;
  std::string reasoning_;
  std::string place_;
  std::string error_;
};

FieldStatus ReadInput(const ordered_json& body, ordered_json* chat,
                      std::vector<MessageItems>* items) {
  Conversation conversation;
  const ordered_json instructions = body.value("instructions", ordered_json());
  if (!instructions.is_null()) {
    if (!instructions.is_string()) return Wrong("instructions", "instructions must be a string");
    conversation.AddText("system", instructions);
  }
  const ordered_json input = body.value("input", ordered_json());
  if (input.is_string()) {
    conversation.BeginWhole();
    conversation.AddText("user", input);
  } else if (!input.is_array() || input.empty()) {
    return Wrong("input", "input must be a string, or an array of at least one item");
  } else {
    for (size_t i = 0; i < input.size(); ++i) {
      if (!conversation.AddItem(input[i], i)) return Wrong("input", conversation.error());
    }
  }
  (*chat)["messages"] = conversation.TakeMessages();
  *items = conversation.TakeItems();
  return std::nullopt;
}

// Tools and their choice are flat here: what is in "function" in a chat stands beside "type".
ordered_json NestedTool(const ordered_json& tool) {
  if (!tool.is_object() || tool.value("type", ordered_json()) != "function") return tool;
  ordered_json function = ordered_json::object();
  for (const auto& [name, value] : tool.items()) {
    if (name != "type") function[name] = value;
  }
  return {{"type", "function"}, {"function", std::move(function)}};
}

FieldStatus ReadTools(const ordered_json& body, ordered_json* chat) {
  const ordered_json tools = body.value("tools", ordered_json());
  if (tools.is_array()) {
    ordered_json nested = ordered_json::array();
    for (const ordered_json& tool : tools) {
      if (!tool.is_object() || tool.value("type", ordered_json()) != "function" ||
          !tool.contains("name") || !tool["name"].is_string()) {
        return Wrong("tools",
                     "tools must have objects alone such as {\"type\": \"function\", \"name\": "
                     "\"f\", \"parameters\": {...}}; there are no built-in tools");
      }
      nested.push_back(NestedTool(tool));
    }
    (*chat)["tools"] = std::move(nested);
  } else if (!tools.is_null()) {
    return Wrong("tools", "tools must be an array");
  }
  const ordered_json choice = body.value("tool_choice", ordered_json());
  if (!choice.is_null()) (*chat)["tool_choice"] = NestedTool(choice);
  return std::nullopt;
}

// {"format": {"type": "json_schema", "name", "schema", "strict"}}
FieldStatus ReadText(const ordered_json& body, ordered_json* chat) {
  const ordered_json text = body.value("text", ordered_json());
  if (text.is_null()) return std::nullopt;
  if (!text.is_object()) return Wrong("text", "text must be an object");
  for (const auto& [name, value] : text.items()) {
    if (name == "format" || value.is_null()) continue;
    return Wrong("text", fmt::format("text.{} is not supported, so leave it out", Printable(name)));
  }
  const ordered_json format = text.value("format", ordered_json());
  if (format.is_null()) return std::nullopt;
  if (!format.is_object() || format.value("type", ordered_json()) != "json_schema") {
    (*chat)["response_format"] = format;
    return std::nullopt;
  }
  ordered_json schema = ordered_json::object();
  for (const auto& [name, value] : format.items()) {
    if (name != "type") schema[name] = value;
  }
  (*chat)["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  return std::nullopt;
}

// {"effort": "low", "summary": "auto"}. Reasoning is in the answer whole, with or without "auto".
FieldStatus ReadReasoning(const ordered_json& body, ordered_json* chat) {
  const ordered_json reasoning = body.value("reasoning", ordered_json());
  if (reasoning.is_null()) return std::nullopt;
  if (!reasoning.is_object()) return Wrong("reasoning", "reasoning must be an object");
  for (const auto& [name, value] : reasoning.items()) {
    if (name == "effort" || value.is_null()) continue;
    const bool is_summary = name == "summary" || name == "generate_summary";
    if (is_summary && value == "auto") continue;
    return Wrong("reasoning", fmt::format("reasoning.{} is not supported{}", Printable(name),
                                          is_summary ? "; it must be absent, null or \"auto\""
                                                     : ", so leave it out"));
  }
  const ordered_json effort = reasoning.value("effort", ordered_json());
  if (!effort.is_null()) (*chat)["reasoning_effort"] = effort;
  return std::nullopt;
}

// What a response repeats of its request.
ordered_json Repeated(const ordered_json& body) {
  ordered_json repeated = {{"instructions", nullptr},
                           {"max_output_tokens", nullptr},
                           {"metadata", ordered_json::object()},
                           {"parallel_tool_calls", true},
                           {"reasoning", nullptr},
                           {"temperature", nullptr},
                           {"text", {{"format", {{"type", "text"}}}}},
                           {"tool_choice", "auto"},
                           {"tools", ordered_json::array()},
                           {"top_p", nullptr},
                           {"user", nullptr}};
  for (auto& [name, value] : repeated.items()) {
    const auto found = body.find(name);
    if (found != body.end() && !found->is_null()) value = *found;
  }
  return repeated;
}

// Takes "BEGIN7]" from the front of `text`; nothing if it begins otherwise.
std::optional<size_t> TakeIndex(std::string_view begin, std::string_view* text) {
  if (!text->starts_with(begin)) return std::nullopt;
  size_t idx = 0;
  const char* first = text->data() + begin.size();
  const char* last = text->data() + text->size();
  const char* end = std::from_chars(first, last, idx).ptr;
  if (end == first || end == last || *end != ']') return std::nullopt;
  text->remove_prefix(static_cast<size_t>(end + 1 - text->data()));
  return idx;
}

// A message that names a message of the chat, or a call in it, names the item instead. False: it
// names none.
bool NameItem(std::span<const MessageItems> message_items, FieldError* error) {
  std::string_view rest = error->error.message;
  if (error->field != "messages") return false;
  const std::optional<size_t> idx = TakeIndex("messages[", &rest);
  if (!idx || *idx >= message_items.size()) return false;
  const MessageItems& items = message_items[*idx];
  int item = items.item;
  const std::optional<size_t> call_idx = TakeIndex(".tool_calls[", &rest);
  if (call_idx && *call_idx < items.calls.size()) item = items.calls[*call_idx];
  const bool is_item = item != MessageItems::kInstructions && item != MessageItems::kWholeInput;
  error->field = item == MessageItems::kInstructions ? "instructions" : "input";
  error->error.message =
      (is_item ? fmt::format("input[{}]", item) : error->field) + std::string(rest);
  return true;
}

}  // namespace

FieldError InResponses(FieldError error, std::span<const MessageItems> message_items) {
  constexpr SameField kOthers[] = {{"input", "messages"},
                                   {"text.format", "response_format"},
                                   {"reasoning.effort", "reasoning_effort"}};
  // Places that messages name: what is nested in a chat is flat here.
  constexpr SameField kPlaces[] = {{"text.format.schema", "response_format.json_schema.schema"},
                                   {"parameters", "function.parameters"}};
  std::string& message = error.error.message;
  const auto rename = [&](const SameField& field) {
    if (error.field != field.in_chat) return false;
    if (message.starts_with(error.field)) message.replace(0, error.field.size(), field.name);
    error.field = field.name;
    return true;
  };
  for (const SameField& place : kPlaces) {
    const size_t at = message.find(place.in_chat);
    if (at != std::string::npos) message.replace(at, std::strlen(place.in_chat), place.name);
  }
  if (NameItem(message_items, &error)) return error;
  if (!std::ranges::any_of(kSameFields, rename)) std::ranges::any_of(kOthers, rename);
  return error;
}

std::variant<GenerationBody, FieldError> ParseResponsesBody(
    const ordered_json& body, const engine::SamplingOptions& defaults) {
  if (FieldStatus wrong = CheckResponseFields(body)) return *std::move(wrong);
  ordered_json chat = ordered_json::object();
  for (const SameField& field : kSameFields) {
    const auto found = body.find(field.name);
    if (found != body.end()) chat[field.in_chat] = *found;
  }
  std::vector<MessageItems> items;
  if (FieldStatus wrong = ReadInput(body, &chat, &items)) return *std::move(wrong);
  for (const auto read : {ReadTools, ReadText, ReadReasoning}) {
    if (FieldStatus wrong = read(body, &chat)) return *std::move(wrong);
  }
  auto parsed = ParseGenerationBody(chat, /*is_chat=*/true, BodyOrigin::kServer, defaults);
  if (auto* wrong = std::get_if<FieldError>(&parsed)) return InResponses(std::move(*wrong), items);
  auto& request = std::get<GenerationBody>(parsed);
  request.is_response = true;
  request.message_items = std::move(items);
  request.repeated = Repeated(body);
  return parsed;
}

}  // namespace convene::openai
