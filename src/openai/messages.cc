#include "openai/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/quote.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;
using text::ChatTemplate;
using text::RenderOptions;

// Texts that no template contains by itself.
constexpr const char* kProbe = "probe_9c1f";
constexpr const char* kUnknownKey = "unknown_9c1f";

// Each part must be {"type": "text", "text": ...}.
Status CheckParts(const ordered_json& parts, size_t message_idx) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const ordered_json& part = parts[i];
    const bool is_text =
        part.is_object() && part.value("type", ordered_json()) == ordered_json("text");
    if (is_text && part.contains("text") && part["text"].is_string()) continue;
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

// Writes "" where a content is null, as the API has it beside tool calls; whether there was any.
bool FillContents(ordered_json& messages) {
  bool found_any = false;
  for (ordered_json& message : messages) {
    if (!message.is_object() || !message.contains("content") || !message["content"].is_null()) {
      continue;
    }
    message["content"] = "";
    found_any = true;
  }
  return found_any;
}

// What may be in any message, whether or not the template reads it: answers are sent back as they
// came.
bool IsOfMessages(std::string_view field, std::string_view role) {
  constexpr std::string_view kFields[] = {
      "role",     "content", "tool_calls",  "tool_call_id", "reasoning_content", "reasoning",
      "thinking", "refusal", "annotations", "audio",        "function_call"};
  if (field == "name") return role == "tool" || role == "function";
  return std::ranges::find(kFields, field) != std::end(kFields);
}

Status CheckFields(const ChatTemplate& chat_template, const ordered_json& messages,
                   const RenderOptions& options) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) continue;  // the template's error says so
    const ordered_json role = messages[i].value("role", ordered_json());
    const std::string role_name = role.is_string() ? role.get<std::string>() : "";
    for (const auto& [field, value] : messages[i].items()) {
      if (value.is_null() || IsOfMessages(field, role_name)) continue;
      if (chat_template.Contains(field)) continue;
      return Error{fmt::format(
          "messages[{}] has the field {}, which the model's chat template does not read: leave it "
          "out",
          i, Quote(field))};
    }
  }
  if (!options.variables.is_object()) return {};
  for (const auto& [name, value] : options.variables.items()) {
    if (chat_template.Contains(name)) continue;
    return Error{fmt::format(
        "chat_template_kwargs has {}, which the model's chat template does not read: leave it out",
        Quote(name))};
  }
  return {};
}

// Messages of roles that a template does not know would be left out without a word.
Status CheckRoles(const ChatTemplate& chat_template, const ordered_json& messages,
                  const RenderOptions& options) {
  std::vector<size_t> unusual;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) return {};
    const ordered_json role = messages[i].value("role", ordered_json());
    if (!role.is_string()) continue;  // the template's error says so
    if (role == "system" || role == "user" || role == "assistant") continue;
    unusual.push_back(i);
  }
  if (unusual.empty()) return {};
  ordered_json probed = messages;
  for (const size_t i : unusual) probed[i]["content"] = fmt::format("{}_{}.", kProbe, i);
  const Result<std::string> text = chat_template.Render(probed, options);
  if (!text) return {};  // its own error comes next
  for (const size_t i : unusual) {
    if (text->find(probed[i]["content"].get<std::string>()) != std::string::npos) continue;
    return Error{fmt::format(
        "messages[{}] has the role {}, whose messages the model's chat template leaves out", i,
        Quote(probed[i].value("role", "")))};
  }
  return {};
}

// With arguments as objects; where the template fails on these, as they came.
Result<std::string> RenderArguments(const ChatTemplate& chat_template, const ordered_json& messages,
                                    const RenderOptions& options) {
  ordered_json with_objects = messages;
  if (!ParseArguments(with_objects)) return chat_template.Render(messages, options);
  Result<std::string> text = chat_template.Render(with_objects, options);
  if (text) return text;
  Result<std::string> with_strings = chat_template.Render(messages, options);
  return with_strings ? with_strings : text;
}

}  // namespace

bool ReadsContentParts(const ChatTemplate& chat_template, const RenderOptions& options) {
  const ordered_json part = {{"type", "text"}, {"text", kProbe}, {kUnknownKey, true}};
  const ordered_json message = {{"role", "user"}, {"content", ordered_json::array({part})}};
  const Result<std::string> text = chat_template.Render(ordered_json::array({message}), options);
  return text && text->find(kProbe) != std::string::npos &&
         text->find(kUnknownKey) == std::string::npos;
}

Result<std::string> RenderMessages(const ChatTemplate& chat_template, const ordered_json& messages,
                                   const RenderOptions& options) {
  const auto has_parts = [](const ordered_json& message) {
    return message.is_object() && message.contains("content") && message["content"].is_array();
  };
  if (!messages.is_array()) return chat_template.Render(messages, options);  // its error
  if (Status read = CheckFields(chat_template, messages, options); !read) return read.error();
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
  if (Status read = CheckRoles(chat_template, prepared, options); !read) return read.error();
  const Result<std::string> text = RenderArguments(chat_template, prepared, options);
  if (text || !FillContents(prepared)) return text;
  const Result<std::string> filled = RenderArguments(chat_template, prepared, options);
  return filled ? filled : text;
}

}  // namespace convene::openai
