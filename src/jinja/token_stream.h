// TokenStream: what both halves of the parser read from, with the error they found.
// Once failed, it is at its end, so that every loop of the parser ends, too.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "jinja/lexer.h"

namespace convene::jinja {

class TokenStream {
 public:
  // `tokens` end with Type::kEnd.
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[position_]; }
  const Token& next() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  Token Take();

  bool At(Token::Type type) const { return current().type == type; }
  bool AtOperator(std::string_view op) const;
  bool AtName(std::string_view name) const;
  bool SkipOperator(std::string_view op);
  bool SkipName(std::string_view name);
  // Takes a token of the type (with the text), or fails.
  Token Expect(Token::Type type, std::string_view what);
  void ExpectOperator(std::string_view op);
  void ExpectName(std::string_view name);

  // Keeps the first error, for the line of the current token or the given one.
  void Fail(std::string_view message) { Fail(message, line()); }
  void Fail(std::string_view message, int line);
  bool failed() const { return error_.has_value(); }
  const Error& error() const { return *error_; }

 private:
  std::vector<Token> tokens_;
  size_t position_ = 0;
  std::optional<Error> error_;
};

}  // namespace convene::jinja
