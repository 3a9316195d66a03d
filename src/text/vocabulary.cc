#include "text/vocabulary.h"

#include <algorithm>

#include "base/quote.h"

namespace convene::text {

Result<Vocabulary> Vocabulary::Create(std::vector<Token> tokens) {
  Vocabulary vocabulary;
  vocabulary.tokens_ = std::move(tokens);
  int32_t max_id = -1;
  for (const Token& token : vocabulary.tokens_) {
    if (token.id < 0 || token.id > kMaxTokenId) {
      return Error{fmt::format("the token {} has the id {}; ids are 0 to {}", Quote(token.text),
                               token.id, kMaxTokenId)};
    }
    max_id = std::max(max_id, token.id);
  }
  vocabulary.index_of_id_.assign(max_id + 1, -1);
  vocabulary.ids_.reserve(vocabulary.tokens_.size());
  for (size_t i = 0; i < vocabulary.tokens_.size(); ++i) {
    const Token& token = vocabulary.tokens_[i];
    int32_t& index = vocabulary.index_of_id_[token.id];
    if (index != -1) {
      return Error{fmt::format("the tokens {} and {} have the same id {}",
                               Quote(vocabulary.tokens_[index].text), Quote(token.text), token.id)};
    }
    index = static_cast<int32_t>(i);
    vocabulary.ids_.emplace(token.text, token.id);
  }
  return vocabulary;
}

const std::string* Vocabulary::TextOf(int32_t id) const {
  if (id < 0 || id > max_id() || index_of_id_[id] == -1) return nullptr;
  return &tokens_[index_of_id_[id]].text;
}

}  // namespace convene::text
