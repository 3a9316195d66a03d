// ChatTemplate: a conversation as the text that a model was trained on, by the Jinja template that
// its tokenizer comes with, exactly as transformers' apply_chat_template renders it. It does not
// tokenize, and it is not a general template engine (see docs/decisions/0003-chat-templates.md).
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "jinja/limits.h"

namespace convene::jinja {
struct Template;
}

namespace convene::text {

// What a template gets from the conversation and from fields of RenderOptions.
inline constexpr const char* kOwnVariables[] = {"messages", "tools", "documents",
                                                "add_generation_prompt"};

struct RenderOptions {
  // Ends the text with the header of the answer to come.
  bool add_generation_prompt = false;
  // Arrays of objects, or null where there are none.
  nlohmann::ordered_json tools = nullptr;
  nlohmann::ordered_json documents = nullptr;
  // An object with further variables of the template, such as enable_thinking; they replace special
  // tokens of the same name. Those of kOwnVariables cannot be given.
  nlohmann::ordered_json variables = nullptr;
  // The time of strftime_now; none: the clock's.
  std::optional<std::chrono::system_clock::time_point> now;
  // What a template may cost, so that a hostile one ends with an error.
  jinja::Limits limits;
};

// Immutable; copies share the parsed template. Threads may render at the same time.
class ChatTemplate {
 public:
  // Special tokens by role, such as {"bos_token", "<s>"}.
  using SpecialTokens = std::map<std::string, std::string>;

  // The template of a checkpoint: chat_template.jinja (with additional_chat_templates/), or
  // chat_template in tokenizer_config.json. Special tokens come from tokenizer_config.json and
  // special_tokens_map.json. Errors: there is no template, or as for Parse.
  static Result<ChatTemplate> Load(const std::string& directory);

  // Errors: a construct that Jinja does not know or that is not supported, by name and line.
  static Result<ChatTemplate> Parse(std::string_view source, SpecialTokens special_tokens = {});

  // `messages` is an array of objects with role, content and whatever else the template reads. Pass
  // JSON in its original order of keys: templates print tools as they come. Errors: the template
  // refuses the conversation (its own words), uses what is not supported, or exceeds the limits.
  Result<std::string> Render(const nlohmann::ordered_json& messages,
                             const RenderOptions& options = {}) const;

  // Whether the template, or its variant with tools, reads the variable of that name anywhere: one
  // that it does not set itself before.
  bool ReadsVariable(const std::string& name) const;

  // Whether the template's source, or that of its variant with tools, has `text` in it: by such
  // words it is known how the model writes calls of tools and what it thinks.
  bool Contains(std::string_view text) const { return source_.find(text) != std::string::npos; }

 private:
  ChatTemplate() = default;

  std::shared_ptr<const jinja::Template> default_;
  std::shared_ptr<const jinja::Template> with_tools_;  // null: the default one has both
  SpecialTokens special_tokens_;
  std::string source_;  // of both
};

}  // namespace convene::text
