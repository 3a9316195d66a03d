// What a model's answers to chats look like, and how a request can have them in a form: JSON of a
// schema, or calls of tools, as the model itself would write them. The grammars are grammar/'s.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/token_trie.h"
#include "openai/answer_syntax.h"
#include "openai/body_fields.h"
#include "openai/generation_body.h"

namespace convene::openai {

class AnswerForms {
 public:
  // `tokenizer` must outlive it. `end_tokens`: those that end a text.
  AnswerForms(const text::Tokenizer& tokenizer, const Result<text::ChatTemplate>& chat_template,
              std::vector<int32_t> end_tokens);

  // How the answer to a chat whose prompt ends in `tail` is to be read, a text of some tokens that
  // ends as the prompt does. Sets request.shown_tokens and request.form of `body`, whose tools,
  // tool_choice, parallel_calls, format and schema say which form it has. Errors: the model's
  // template has no calls that are known; a keyword of a schema that is not supported.
  // Threads may call it at the same time.
  std::variant<AnswerReading, FieldError> Apply(const std::string& tail,
                                                GenerationBody* body) const;

 private:
  std::shared_ptr<const grammar::TokenTrie> Trie() const;

  const text::Tokenizer& tokenizer_;
  std::vector<int32_t> end_tokens_;
  AnswerSyntax syntax_;
  bool has_tools_ = false;
  std::vector<int32_t> shown_tokens_;  // special tokens among the markers
  // Of the whole vocabulary, made when it is first needed.
  mutable std::once_flag made_trie_;
  mutable std::shared_ptr<const grammar::TokenTrie> trie_;
};

// The grammar of an answer to `body`, where it must have a form; nothing where it need not.
// `tail` as above.
std::variant<std::optional<grammar::Grammar>, FieldError> GrammarOf(const AnswerSyntax& syntax,
                                                                    const std::string& tail,
                                                                    const GenerationBody& body);

}  // namespace convene::openai
