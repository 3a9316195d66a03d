#include "text/chat_template.h"

#include <fmt/format.h>

#include "jinja/interpreter.h"
#include "jinja/json_text.h"
#include "jinja/parser.h"
#include "jinja/run.h"
#include "jinja/scopes.h"

namespace convene::text {
namespace {

using nlohmann::ordered_json;

Result<std::shared_ptr<const jinja::Template>> ParseSource(std::string_view source) {
  Result<jinja::Template> parsed = jinja::ParseTemplate(source);
  if (!parsed) return Error{"chat template, " + parsed.error().message, parsed.error().kind};
  auto shared = std::make_shared<jinja::Template>(*std::move(parsed));
  if (const Status placed = jinja::PlaceVariables(*shared); !placed) {
    return Error{"chat template, " + placed.error().message, placed.error().kind};
  }
  return std::shared_ptr<const jinja::Template>(shared);
}

// As transformers prepares a message: without keys that are null, and with its reasoning under the
// names that templates read.
ordered_json PrepareMessage(const ordered_json& message) {
  ordered_json result = ordered_json::object();
  const ordered_json* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = message.find(name);
    if (reasoning == nullptr && found != message.end() && !found->is_null()) reasoning = &*found;
  }
  if (reasoning != nullptr) result["thinking"] = *reasoning;
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) result[key] = value;
  }
  if (reasoning != nullptr) result["reasoning_content"] = *reasoning;
  return result;
}

Status CheckObjects(const ordered_json& list, std::string_view what) {
  if (list.is_null()) return {};
  if (!list.is_array()) {
    return Error{fmt::format("{} must be a JSON array, not {}", what, list.type_name())};
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_object()) {
      return Error{
          fmt::format("{}[{}] must be a JSON object, not {}", what, i, list[i].type_name())};
    }
  }
  return {};
}

Status CheckInput(const ordered_json& messages, const RenderOptions& options) {
  if (const Status checked = CheckObjects(messages, "messages"); !checked) return checked;
  if (messages.empty()) return Error{"the conversation is empty; provide at least one message"};
  if (const Status checked = CheckObjects(options.tools, "tools"); !checked) return checked;
  if (const Status checked = CheckObjects(options.documents, "documents"); !checked) return checked;
  if (!options.variables.is_null() && !options.variables.is_object()) {
    return Error{fmt::format("the variables of a template must be a JSON object, not {}",
                             options.variables.type_name())};
  }
  for (const char* name : kOwnVariables) {
    if (options.variables.contains(name)) {
      return Error{fmt::format("\"{}\" cannot be given as a variable of a template", name)};
    }
  }
  return {};
}

ordered_json MakeContext(const ordered_json& messages, const RenderOptions& options,
                         const ChatTemplate::SpecialTokens& special_tokens) {
  ordered_json context = ordered_json::object();
  for (const auto& [role, token] : special_tokens) context[role] = token;
  for (const auto& [name, value] : options.variables.items()) context[name] = value;
  ordered_json prepared = ordered_json::array();
  for (const ordered_json& message : messages) prepared.push_back(PrepareMessage(message));
  context["messages"] = std::move(prepared);
  context["tools"] = options.tools;
  context["documents"] = options.documents;
  context["add_generation_prompt"] = options.add_generation_prompt;
  return context;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::Parse(std::string_view source, SpecialTokens special_tokens) {
  auto parsed = ParseSource(source);
  if (!parsed) return parsed.error();
  ChatTemplate result;
  result.default_ = *std::move(parsed);
  result.special_tokens_ = std::move(special_tokens);
  result.source_ = source;
  return result;
}

Result<std::string> ChatTemplate::Render(const ordered_json& messages,
                                         const RenderOptions& options) const {
  if (const Status checked = CheckInput(messages, options); !checked) return checked.error();
  jinja::Run run(options.limits, options.now.value_or(std::chrono::system_clock::now()));
  const jinja::Value context =
      jinja::FromJson(run, MakeContext(messages, options, special_tokens_));
  if (run.failed()) return Error{run.error()};
  const bool uses_tools = with_tools_ != nullptr && !options.tools.is_null();
  std::string text =
      jinja::Interpreter(uses_tools ? *with_tools_ : *default_, context.AsDict(), run).Render();
  if (run.failed()) {
    return Error{fmt::format("chat template, line {}: {}", run.line(), run.error())};
  }
  return text;
}

bool ChatTemplate::ReadsVariable(const std::string& name) const {
  return default_->context_names.contains(name) ||
         (with_tools_ != nullptr && with_tools_->context_names.contains(name));
}

}  // namespace convene::text
