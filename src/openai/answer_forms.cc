#include "openai/answer_forms.h"

#include <algorithm>
#include <utility>

#include "grammar/token_matcher.h"
#include "openai/parameter_types.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;

// What the schemas say of the parameters of functions.
std::map<std::pair<std::string, std::string>, JsonTypes> ParameterTypes(const ordered_json& tools) {
  std::map<std::pair<std::string, std::string>, JsonTypes> found;
  for (const ordered_json& tool : tools) {
    const ordered_json& function = tool["function"];
    const auto parameters = function.find("parameters");
    if (parameters == function.end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    for (const auto& [name, schema] : properties->items()) {
      found.emplace(std::pair(function["name"].get<std::string>(), name),
                    TypesOf(schema, *parameters));
    }
  }
  return found;
}

}  // namespace

AnswerForms::AnswerForms(const text::Tokenizer& tokenizer,
                         const Result<text::ChatTemplate>& chat_template,
                         std::vector<int32_t> end_tokens)
    : tokenizer_(tokenizer), end_tokens_(std::move(end_tokens)) {
  if (!chat_template) return;
  syntax_ = SyntaxOf(*chat_template, tokenizer);
  has_tools_ = chat_template->ReadsVariable("tools");
  for (const std::string& marker : syntax_.Markers()) {
    const std::optional<int32_t> id = tokenizer.IdOf(marker);
    if (id && tokenizer.IsSpecial(*id)) shown_tokens_.push_back(*id);
  }
}

std::variant<AnswerReading, FieldError> AnswerForms::Apply(const std::string& tail,
                                                           GenerationBody* body) const {
  AnswerReading reading = {.syntax = syntax_,
                           .begins_in_reasoning = BeginsReasoning(syntax_, tail)};
  // Who has no tools calls none, unless the template leaves it to the system's message to tell
  // them; channels are there all the same.
  if (body->tools.is_null() && has_tools_ && syntax_.calls != CallForm::kChannels) {
    reading.syntax = {.think_begin = syntax_.think_begin, .think_end = syntax_.think_end};
  }
  reading.parameter_types = ParameterTypes(body->tools);
  auto grammar = GrammarOf(syntax_, tail, *body);
  if (auto* wrong = std::get_if<FieldError>(&grammar)) return std::move(*wrong);
  body->request.shown_tokens = shown_tokens_;
  if (auto& form = std::get<std::optional<grammar::Grammar>>(grammar)) {
    body->request.form =
        std::make_shared<grammar::TokenMasks>(*std::move(form), Trie(), end_tokens_);
  }
  return reading;
}

std::shared_ptr<const grammar::TokenTrie> AnswerForms::Trie() const {
  std::call_once(made_trie_, [this] {
    std::vector<grammar::TokenBytes> tokens;
    for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
      const bool is_shown = std::ranges::find(shown_tokens_, id) != shown_tokens_.end();
      const bool ends = std::ranges::find(end_tokens_, id) != end_tokens_.end();
      if (!tokenizer_.HasToken(id) || ends || (tokenizer_.IsSpecial(id) && !is_shown)) continue;
      Result<std::string> bytes = tokenizer_.BytesOf(id);
      if (bytes) tokens.push_back({*std::move(bytes), id});
    }
    trie_ = std::make_shared<grammar::TokenTrie>(std::move(tokens), tokenizer_.vocab_size());
  });
  return trie_;
}

}  // namespace convene::openai
