#include "openai/batch_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
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
      {"n", 1, ": repeat the line instead"},
      {"best_of", 1},
      {"stream", false},
      {"echo", false},
      {"frequency_penalty", 0, ": use repetition_penalty"},
      {"presence_penalty", 0, ": use repetition_penalty"},
      {"logit_bias", ordered_json::object()},
      {"suffix", ""},
      {"response_format", {{"type", "text"}}, ": no other form can be enforced"},
      {"parallel_tool_calls", true},
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
      {"chat_template_kwargs", ordered_json::object()},
  };
  return fields;
}

// What says something about the request, and nothing about its answer.
constexpr const char* kFieldsWithoutEffect[] = {"user",
                                                "metadata",
                                                "store",
                                                "service_tier",
                                                "safety_identifier",
                                                "priority",
                                                "request_id",
                                                "stream_options",
                                                "cache_salt",
                                                "prompt_cache_key",
                                                "prompt_cache_retention"};
constexpr const char* kFields[] = {
    "model",      "max_tokens", "max_completion_tokens", "temperature", "top_k",
    "top_p",      "min_p",      "repetition_penalty",    "seed",        "stop",
    "ignore_eos", "logprobs"};
constexpr const char* kChatFields[] = {"messages", "tools", "tool_choice", "top_logprobs"};
constexpr const char* kCompletionFields[] = {"prompt"};

}  // namespace

Status CheckBatchFields(const ordered_json& body, bool is_chat) {
  std::vector<std::string> known(std::begin(kFields), std::end(kFields));
  if (is_chat) {
    known.insert(known.end(), std::begin(kChatFields), std::end(kChatFields));
  } else {
    known.insert(known.end(), std::begin(kCompletionFields), std::end(kCompletionFields));
  }
  const auto is_among = [](const auto& names, const std::string& name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  for (const auto& [name, value] : body.items()) {
    if (is_among(known, name) || is_among(kFieldsWithoutEffect, name) || value.is_null()) continue;
    const auto neutral = std::ranges::find_if(
        NeutralFields(), [&](const NeutralField& field) { return field.name == name; });
    if (neutral != NeutralFields().end()) {
      if (value == neutral->neutral) continue;
      return Error{fmt::format("body.{} is not supported; it must be absent or {}{}", name,
                               neutral->neutral.dump(), neutral->advice)};
    }
    if (is_among(kChatFields, name) || is_among(kCompletionFields, name)) {
      return Error{fmt::format("body.{} is of the other url, {}", name,
                               is_chat ? kCompletionsUrl : kChatUrl)};
    }
    return Error{fmt::format("body.{} is not known{}; leave it out", Printable(name),
                             DidYouMean(name, known))};
  }
  return {};
}

}  // namespace convene::openai
