#include "openai/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/quote.h"
#include "openai/template_coverage.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;
using text::ChatTemplate;
using text::RenderOptions;

// Texts that no template contains by itself.
constexpr const char* kMessageProbe = "probe_9c1f";
constexpr const char* kUnknownKey = "unknown_9c1f";

// The first field of an object that is not null and not among those that are known.
std::optional<std::string> UnknownField(const ordered_json& object,
                                        std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : object.items()) {
    if (!value.is_null() && std::ranges::find(known, name) == known.end()) return name;
  }
  return std::nullopt;
}

// Each part must be {"type": "text", "text": ...}; "cache_control" is a hint.
Status CheckParts(const ordered_json& parts, size_t message_idx) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const ordered_json& part = parts[i];
    const bool is_text =
        part.is_object() && part.value("type", ordered_json()) == ordered_json("text");
    if (is_text && part.contains("text") && part["text"].is_string()) {
      const auto unknown = UnknownField(part, {"type", "text", "cache_control"});
      if (!unknown) continue;
      return Error{fmt::format("messages[{}].content[{}] has the field {}, which is not known",
                               message_idx, i, Quote(*unknown))};
    }
    const bool has_type = part.is_object() && part.contains("type") && part["type"].is_string();
    const std::string type = has_type
                                 ? fmt::format("of type {}", Quote(part["type"].get<std::string>()))
                                 : "without type";
    return Error{is_text
                     ? fmt::format("messages[{}].content[{}] has no text", message_idx, i)
                     : fmt::format("messages[{}].content[{}] is a part {}; only text is supported",
                                   message_idx, i, type)};
  }
  return {};
}

std::string JoinParts(const ordered_json& parts) {
  std::string text;
  for (const ordered_json& part : parts) {
    if (&part != &parts.front()) text += '\n';
    text += part["text"].get<std::string>();
  }
  return text;
}

// Replaces arguments that are the text of an object; whether there were any.
bool ParseArguments(ordered_json& messages) {
  bool found_any = false;
  for (ordered_json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (ordered_json& call : *calls) {
      if (!call.is_object() || !call.contains("function")) continue;
      ordered_json& function = call["function"];
      if (!function.is_object() || !function.contains("arguments")) continue;
      ordered_json& arguments = function["arguments"];
      if (!arguments.is_string()) continue;
      const auto text = arguments.get<std::string>();
      Result<ordered_json> parsed = text.empty() ? ordered_json::object() : ParseOrderedJson(text);
      if (!parsed || !parsed->is_object()) continue;
      arguments = *std::move(parsed);
      found_any = true;
    }
  }
  return found_any;
}

// Writes "" where a content is null or, in what the model said, absent, as the API has it beside
// tool calls; whether there was any.
bool FillContents(ordered_json& messages) {
  bool found_any = false;
  for (ordered_json& message : messages) {
    const auto content = message.find("content");
    const bool is_absent =
        content == message.end() && message.value("role", ordered_json()) == "assistant";
    if (!is_absent && (content == message.end() || !content->is_null())) continue;
    message["content"] = "";
    found_any = true;
  }
  return found_any;
}

bool HasName(const ordered_json& call) {
  if (!call.is_object() || !call.contains("function")) return false;
  const ordered_json& function = call["function"];
  return function.is_object() && function.contains("name") && function["name"].is_string();
}

// Of a call that has a name. Pieces of a stream have an "index" besides, and clients write what
// they parsed beside the arguments.
Status CheckCall(const ordered_json& call, const std::string& place) {
  const ordered_json type = call.value("type", ordered_json());
  if (!type.is_null() && type != "function") {
    return Error{fmt::format("{} is of the type {}; only function is supported", place,
                             Printable(type.dump()))};
  }
  auto unknown = UnknownField(call, {"id", "type", "function", "index"});
  if (!unknown) {
    unknown = UnknownField(call["function"], {"name", "arguments", "parsed_arguments"});
    if (unknown) unknown = "function." + *unknown;
  }
  if (!unknown) return {};
  return Error{fmt::format("{} has the field {}, which is not known", place, Quote(*unknown))};
}

// Each must be {"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}, of
// which the name must be there.
Status CheckCalls(const ordered_json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const ordered_json calls = messages[i].value("tool_calls", ordered_json());
    const bool is_list = calls.is_null() || calls.is_array();
    if (!is_list || !std::ranges::all_of(calls, HasName)) {
      return Error{fmt::format(
          "messages[{}].tool_calls must be an array of objects such as {{\"id\": \"c\", \"type\": "
          "\"function\", \"function\": {{\"name\": \"f\", \"arguments\": \"{{}}\"}}}}",
          i)};
    }
    for (size_t j = 0; j < calls.size(); ++j) {
      const Status known = CheckCall(calls[j], fmt::format("messages[{}].tool_calls[{}]", i, j));
      if (!known) return known;
    }
  }
  return {};
}

// What a template says of a message without content names a line of the template.
Error NamingMissingContent(const ordered_json& messages, Error failed) {
  const auto has_content = [](const ordered_json& message) { return message.contains("content"); };
  const auto without = std::ranges::find_if_not(messages, has_content);
  if (without == messages.end()) return failed;
  failed.message =
      fmt::format("messages[{}] has no content: {}", without - messages.begin(), failed.message);
  return failed;
}

// With arguments as objects; where the template fails on these, as they came. `messages` become
// what was rendered.
Result<std::string> RenderArguments(const ChatTemplate& chat_template, const RenderOptions& options,
                                    ordered_json* messages) {
  ordered_json with_objects = *messages;
  if (!ParseArguments(with_objects)) return chat_template.Render(*messages, options);
  Result<std::string> text = chat_template.Render(with_objects, options);
  if (!text) {
    Result<std::string> with_strings = chat_template.Render(*messages, options);
    return with_strings ? with_strings : text;
  }
  *messages = std::move(with_objects);
  return text;
}

// The same, with contents where the template fails on messages without.
Result<std::string> RenderForms(const ChatTemplate& chat_template, const RenderOptions& options,
                                ordered_json* messages) {
  ordered_json filled = *messages;
  Result<std::string> text = RenderArguments(chat_template, options, messages);
  if (text || !FillContents(filled)) return text;
  Result<std::string> with_contents = RenderArguments(chat_template, options, &filled);
  if (!with_contents) return text;
  *messages = std::move(filled);
  return with_contents;
}

}  // namespace

bool ReadsContentParts(const ChatTemplate& chat_template, const RenderOptions& options) {
  const ordered_json part = {{"type", "text"}, {"text", kMessageProbe}, {kUnknownKey, true}};
  const ordered_json message = {{"role", "user"}, {"content", ordered_json::array({part})}};
  const Result<std::string> text = chat_template.Render(ordered_json::array({message}), options);
  return text && text->find(kMessageProbe) != std::string::npos &&
         text->find(kUnknownKey) == std::string::npos;
}

Result<std::string> RenderMessages(const ChatTemplate& chat_template, const ordered_json& messages,
                                   const RenderOptions& options) {
  const auto has_parts = [](const ordered_json& message) {
    return message.contains("content") && message["content"].is_array();
  };
  const auto is_object = [](const ordered_json& message) { return message.is_object(); };
  if (!messages.is_array() || !std::ranges::all_of(messages, is_object)) {
    return chat_template.Render(messages, options);  // its error
  }
  if (const Status checked = CheckCalls(messages); !checked) return checked.error();
  RenderOptions at_one_time = options;  // texts are compared
  if (!options.now) at_one_time.now = std::chrono::system_clock::now();
  ordered_json prepared = messages;
  if (std::any_of(prepared.begin(), prepared.end(), has_parts)) {
    const bool reads_parts = ReadsContentParts(chat_template, options);
    for (size_t i = 0; i < prepared.size(); ++i) {
      if (!has_parts(prepared[i])) continue;
      ordered_json& content = prepared[i]["content"];
      if (const Status checked = CheckParts(content, i); !checked) return checked.error();
      if (!reads_parts) content = JoinParts(content);
    }
  }
  const auto render = [&](ordered_json form) {
    return RenderForms(chat_template, at_one_time, &form);
  };
  AdoptRoles(render, &prepared);
  Result<std::string> text = RenderForms(chat_template, at_one_time, &prepared);
  if (!text) return NamingMissingContent(prepared, text.error());
  const Status read = CheckAllIsRead(chat_template, prepared, at_one_time, *text);
  return read ? text : Result<std::string>(read.error());
}

}  // namespace convene::openai
