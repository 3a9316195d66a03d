// The tokens that a tokenizer puts around a text, such as one for its beginning. Not the chat
// template, which is text (chat_template.h).
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

namespace convene::text {

struct TextTokens {};  // where the text's own tokens go

struct TokenTemplate {
  std::vector<std::variant<TextTokens, std::vector<int32_t>>> parts;
};

// `ids` within the templates, applied one after the other; with `add_special_tokens` false only the
// text's own tokens.
std::vector<int32_t> ApplyTemplates(const std::vector<TokenTemplate>& templates,
                                    std::vector<int32_t> ids, bool add_special_tokens);

}  // namespace convene::text
