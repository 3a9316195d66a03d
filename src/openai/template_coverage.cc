#include "openai/template_coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/quote.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;
using text::ChatTemplate;
using text::RenderOptions;

// A text that no template contains by itself.
constexpr const char* kProbe = "probe_5e70";

std::string RoleOf(const ordered_json& message) {
  const ordered_json role = message.value("role", ordered_json());
  return role.is_string() ? role.get<std::string>() : "";
}

// What is looked for in a text, and what is wrong where it is not there.
struct Probe {
  std::string text;
  std::string complaint;
  size_t message_idx;
  bool may_move;  // with a later turn
};

// In the form of the content: templates that read parts may read nothing else.
void WriteProbe(const std::string& probe, ordered_json* message) {
  ordered_json& content = (*message)["content"];
  if (content.is_array()) {
    const ordered_json part = {{"type", "text"}, {"text", probe}};
    content = ordered_json::array({part});
  } else {
    content = probe;
  }
}

// The probes that a text has, in one pass over it: there may be as many as messages.
std::set<std::string_view> ProbesIn(std::string_view text) {
  constexpr size_t kMostBytes = 64;  // of a probe
  std::set<std::string_view> found;
  for (size_t at = text.find(kProbe); at != std::string_view::npos;
       at = text.find(kProbe, at + 1)) {
    const std::string_view begun = text.substr(at, kMostBytes);
    const size_t end = begun.find('.');
    if (end != std::string_view::npos) found.insert(begun.substr(0, end + 1));
  }
  return found;
}

bool IsEmpty(const ordered_json& content) {
  return content.is_string() ? content.get_ref<const std::string&>().empty() : content.empty();
}

// Writes probes for what the template may not know into a copy of the messages. Not into what the
// model said: templates may leave out what is old of that.
std::vector<Probe> ProbeRolesAndCalls(ordered_json& messages) {
  std::vector<Probe> probes;
  for (size_t i = 0; i < messages.size(); ++i) {
    ordered_json& message = messages[i];
    const std::string role = RoleOf(message);
    const bool is_usual = role == "system" || role == "user";
    const bool says_something = !IsEmpty(message.value("content", ordered_json()));
    if (role != "assistant" && (says_something || !is_usual)) {
      probes.push_back(
          {fmt::format("{}_{}.", kProbe, i),
           is_usual
               ? fmt::format("messages[{}] has the role {}, and the model's chat template leaves "
                             "it out: say it in a message of another role or place",
                             i, Quote(role))
               : fmt::format("messages[{}] has the role {}, whose messages the model's chat "
                             "template leaves out",
                             i, Quote(role)),
           i, is_usual});
      WriteProbe(probes.back().text, &message);
    }
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (size_t k = 0; k < calls->size(); ++k) {
      probes.push_back(
          {fmt::format("{}_{}_{}.", kProbe, i, k),
           fmt::format("messages[{}].tool_calls[{}] is left out by the model's chat template: say "
                       "in a content what was called",
                       i, k),
           i, false});
      (*calls)[k]["function"]["name"] = probes.back().text;
    }
  }
  return probes;
}

// Those that are not in the text of the messages; none where there is no such text, since who is so
// particular about messages reads them.
std::vector<Probe> MissingProbes(const ChatTemplate& chat_template, const ordered_json& messages,
                                 const RenderOptions& options, std::vector<Probe> probes) {
  if (probes.empty()) return {};
  const Result<std::string> text = chat_template.Render(messages, options);
  if (!text) return {};
  const std::set<std::string_view> found = ProbesIn(*text);
  std::erase_if(probes, [&](const Probe& probe) { return found.contains(probe.text); });
  return probes;
}

Status CheckRolesAndCalls(const ChatTemplate& chat_template, const ordered_json& messages,
                          const RenderOptions& options) {
  ordered_json probed = messages;
  std::vector<Probe> probes = ProbeRolesAndCalls(probed);
  std::vector<Probe> missing = MissingProbes(chat_template, probed, options, std::move(probes));
  if (missing.empty()) return {};
  const auto lost = std::ranges::find(missing, false, &Probe::may_move);
  if (lost != missing.end()) return Error{lost->complaint};
  // As the conversation was when the user's turn behind the last of them was asked.
  size_t end = missing.back().message_idx;
  while (end < probed.size() && RoleOf(probed[end]) != "user") ++end;
  if (end + 1 < probed.size()) {
    probed.erase(probed.begin() + static_cast<std::ptrdiff_t>(end) + 1, probed.end());
    missing = MissingProbes(chat_template, probed, options, std::move(missing));
  }
  if (missing.empty()) return {};
  return Error{missing.front().complaint};
}

// What may be in a message whether or not the template reads it: it says which message belongs to
// which, or answers have it beside their text, which are sent back as they came.
bool MayBeUnread(std::string_view field, const ordered_json& value, std::string_view role) {
  constexpr std::string_view kBeside[] = {"role",      "content",  "tool_calls", "tool_call_id",
                                          "reasoning", "thinking", "annotations"};
  constexpr std::string_view kEmpty[] = {"refusal", "audio", "function_call"};
  if (value.is_null() || field == "reasoning_content") return true;
  if (field == "name" && (role == "tool" || role == "function")) return true;
  if (std::ranges::find(kEmpty, field) != std::end(kEmpty)) {
    if (value.is_string()) return value.get_ref<const std::string&>().empty();
    return value.is_structured() && value.empty();
  }
  return std::ranges::find(kBeside, field) != std::end(kBeside);
}

// Whether any value of the field makes another text, or none.
bool ReadsField(const ChatTemplate& chat_template, const ordered_json& messages,
                const RenderOptions& options, const std::string& text, size_t message_idx,
                const std::string& field) {
  const ordered_json values[] = {nullptr, true, false, kProbe, ordered_json::array({kProbe})};
  ordered_json changed = messages;
  return std::ranges::any_of(values, [&](const ordered_json& value) {
    changed[message_idx][field] = value;
    const Result<std::string> other = chat_template.Render(changed, options);
    return !other || *other != text;
  });
}

Status CheckFields(const ChatTemplate& chat_template, const ordered_json& messages,
                   const RenderOptions& options, const std::string& text) {
  // A field that is read in one message is read in others of its role.
  std::set<std::pair<std::string, std::string>> read;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = RoleOf(messages[i]);
    for (const auto& [field, value] : messages[i].items()) {
      if (MayBeUnread(field, value, role) || read.contains({role, field})) continue;
      if (!ReadsField(chat_template, messages, options, text, i, field)) {
        return Error{fmt::format(
            "messages[{}] has the field {}, which the model's chat template does not read: leave "
            "it out",
            i, Quote(field))};
      }
      read.emplace(role, field);
    }
  }
  return {};
}

// Whether the contents of all developers' messages are in the text.
bool ReadsDevelopers(const RenderConversation& render, const ordered_json& messages,
                     const char* role) {
  ordered_json probed = messages;
  std::vector<std::string> probes;
  for (ordered_json& message : probed) {
    if (RoleOf(message) != "developer") continue;
    probes.push_back(fmt::format("{}_{}.", kProbe, probes.size()));
    WriteProbe(probes.back(), &message);
    message["role"] = role;
  }
  if (probes.empty()) return true;
  const Result<std::string> text = render(std::move(probed));
  if (!text) return false;
  const std::set<std::string_view> found = ProbesIn(*text);
  return std::ranges::all_of(probes,
                             [&](const std::string& probe) { return found.contains(probe); });
}

}  // namespace

void AdoptRoles(const RenderConversation& render, ordered_json* messages) {
  if (ReadsDevelopers(render, *messages, "developer") ||
      !ReadsDevelopers(render, *messages, "system")) {
    return;
  }
  for (ordered_json& message : *messages) {
    if (RoleOf(message) == "developer") message["role"] = "system";
  }
}

Status CheckAllIsRead(const ChatTemplate& chat_template, const ordered_json& messages,
                      const RenderOptions& options, const std::string& text) {
  if (Status read = CheckRolesAndCalls(chat_template, messages, options); !read) return read;
  return CheckFields(chat_template, messages, options, text);
}

FieldStatus CheckOptionsAreRead(const ChatTemplate& chat_template, const RenderOptions& options) {
  if (!options.tools.empty() && !chat_template.ReadsVariable("tools")) {
    return FieldError{Error{"tools cannot be given: the model's chat template does not read them"},
                      "tools"};
  }
  for (const char* name : text::kOwnVariables) {
    if (!options.variables.contains(name)) continue;
    return FieldError{Error{fmt::format("chat_template_kwargs has {}, which templates get from "
                                        "elsewhere: leave it out",
                                        Quote(name))},
                      "chat_template_kwargs"};
  }
  for (const auto& [name, value] : options.variables.items()) {
    if (chat_template.ReadsVariable(name)) continue;
    if (name == "reasoning_effort") {
      return FieldError{Error{"reasoning_effort cannot be given: the model's chat template does "
                              "not read it"},
                        name};
    }
    return FieldError{
        Error{fmt::format("chat_template_kwargs has {}, which the model's chat template does not "
                          "read: leave it out",
                          Quote(name))},
        "chat_template_kwargs"};
  }
  return std::nullopt;
}

}  // namespace convene::openai
