#include "openai/body_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/closest_name.h"
#include "base/quote.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;

// A field of OpenAI's or of other servers that is known and not honoured: it may only have the
// value that changes nothing.
struct NeutralField {
  const char* name;
  ordered_json neutral;
  const char* advice = "";  // behind the message
};

const std::vector<NeutralField>& NeutralFields() {
  static const std::vector<NeutralField> fields = {
      {"best_of", 1},
      {"echo", false},
      {"suffix", ""},
      {"store", false, ": nothing is stored"},
      {"cache_salt", "", ": equal beginnings of prompts are computed once for all"},
      {"modalities", ordered_json::array({"text"})},
      {"functions", ordered_json::array(), ": use tools"},
      {"function_call", "none", ": use tools"},
      {"use_beam_search", false},
      {"length_penalty", 1},
      {"min_tokens", 0},
      {"stop_token_ids", ordered_json::array()},
      {"bad_words", ordered_json::array()},
      {"include_stop_str_in_output", false},
      {"skip_special_tokens", true},
      {"add_generation_prompt", true},
      {"continue_final_message", false},
      {"audio", nullptr},
      {"prediction", nullptr},
      {"verbosity", nullptr},
      {"web_search_options", nullptr},
      {"structured_outputs", nullptr, ": use response_format"},
      {"guided_json", nullptr, ": use response_format"},
      {"guided_regex", nullptr},
      {"guided_choice", nullptr},
      {"guided_grammar", nullptr},
      {"prompt_logprobs", nullptr},
      {"truncate_prompt_tokens", nullptr},
      {"documents", nullptr},
      {"chat_template", nullptr},
  };
  return fields;
}

// Of a line of a batch besides.
const std::vector<NeutralField>& NeutralBatchFields() {
  static const std::vector<NeutralField> fields = {
      {"n", 1, ": repeat the line instead"},
      {"stream", false},
      {"return_progress", false},
      {"response_format", {{"type", "text"}}, ": a server can enforce other forms"},
      {"parallel_tool_calls", true},
      {"priority", 0, ": the lines of a batch have no order among them"}};
  return fields;
}

constexpr const char* kTextHints[] = {"user", "safety_identifier", "request_id", "prompt_cache_key",
                                      "prompt_cache_retention"};
constexpr const char* kFields[] = {"model",
                                   "max_tokens",
                                   "max_completion_tokens",
                                   "temperature",
                                   "top_k",
                                   "top_p",
                                   "min_p",
                                   "repetition_penalty",
                                   "presence_penalty",
                                   "frequency_penalty",
                                   "logit_bias",
                                   "seed",
                                   "stop",
                                   "ignore_eos",
                                   "logprobs",
                                   "n",
                                   "stream",
                                   "stream_options",
                                   "return_progress",
                                   "priority"};
constexpr const char* kChatFields[] = {
    "messages",        "tools",        "tool_choice",          "parallel_tool_calls",
    "response_format", "top_logprobs", "chat_template_kwargs", "reasoning_effort"};
constexpr const char* kCompletionFields[] = {"prompt"};

template <typename Names>
bool IsAmong(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

const NeutralField* FindNeutral(const std::string& name, BodyOrigin origin) {
  const auto find = [&](const std::vector<NeutralField>& fields) -> const NeutralField* {
    const auto found =
        std::ranges::find_if(fields, [&](const NeutralField& field) { return field.name == name; });
    return found == fields.end() ? nullptr : &*found;
  };
  const NeutralField* field = find(NeutralFields());
  if (field != nullptr || origin == BodyOrigin::kServer) return field;
  return find(NeutralBatchFields());
}

}  // namespace

std::string NameOf(std::string_view field, BodyOrigin origin) {
  return fmt::format("{}{}", origin == BodyOrigin::kBatchLine ? "body." : "", field);
}

std::optional<FieldStatus> CheckHint(std::string_view name, const ordered_json& value,
                                     std::string_view shown) {
  const char* wanted = nullptr;
  if (IsAmong(kTextHints, name)) {
    if (!value.is_string()) wanted = "must be a string";
  } else if (name == "metadata") {
    if (!value.is_object()) wanted = "must be an object";
  } else if (name == "service_tier") {
    if (value != "auto" && value != "default") {
      wanted = "must be absent, \"auto\" or \"default\": all requests are served alike";
    }
  } else {
    return std::nullopt;
  }
  if (wanted == nullptr || value.is_null()) return FieldStatus();
  return FieldError{Error{fmt::format("{} {}", shown, wanted)}, std::string(name)};
}

FieldStatus CheckFields(const ordered_json& body, bool is_chat, BodyOrigin origin) {
  std::vector<std::string> known(std::begin(kFields), std::end(kFields));
  if (is_chat) {
    known.insert(known.end(), std::begin(kChatFields), std::end(kChatFields));
  } else {
    known.insert(known.end(), std::begin(kCompletionFields), std::end(kCompletionFields));
  }
  for (const auto& [name, value] : body.items()) {
    const std::string shown = NameOf(Printable(name), origin);
    if (const auto hint = CheckHint(name, value, shown)) {
      if (*hint) return *hint;
      continue;
    }
    const NeutralField* neutral = FindNeutral(name, origin);
    if (neutral == nullptr && IsAmong(known, name)) continue;
    if (neutral != nullptr) {
      if (value.is_null() || value == neutral->neutral) continue;
      return FieldError{Error{fmt::format("{} is not supported; it must be absent or {}{}", shown,
                                          neutral->neutral.dump(), neutral->advice)},
                        name};
    }
    if (IsAmong(kChatFields, name) || IsAmong(kCompletionFields, name)) {
      if (value.is_null()) continue;
      return FieldError{Error{fmt::format("{} is of the other url, {}", shown,
                                          is_chat ? kCompletionsUrl : kChatUrl)},
                        name};
    }
    return FieldError{
        Error{fmt::format("{} is not known, so leave it out{}", shown, DidYouMean(name, known))},
        name};
  }
  return std::nullopt;
}

}  // namespace convene::openai
