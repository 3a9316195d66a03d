// The tokens of a model and their ids, both ways. Added tokens, which are matched in the text
// before the model sees it, are added_tokens.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace convene::text {

// Ids beyond this are taken for a mistake: tables are indexed by them.
inline constexpr int64_t kMaxTokenId = (1 << 20) - 1;

struct Token {
  std::string text;  // UTF-8, as the vocabulary spells it
  int32_t id;
};

class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // Errors: an id that is negative, above kMaxTokenId or given to two tokens.
  static Result<Vocabulary> Create(std::vector<Token> tokens);

  std::optional<int32_t> IdOf(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  // Null where no token has this id.
  const std::string* TextOf(int32_t id) const;

  size_t num_tokens() const { return ids_.size(); }
  int32_t max_id() const { return static_cast<int32_t>(index_of_id_.size()) - 1; }
  const std::vector<Token>& tokens() const { return tokens_; }

 private:
  std::vector<Token> tokens_;
  std::vector<int32_t> index_of_id_;                   // into tokens_; -1 for an id without token
  std::unordered_map<std::string_view, int32_t> ids_;  // views into tokens_
};

}  // namespace convene::text
