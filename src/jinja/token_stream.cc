#include "jinja/token_stream.h"

#include <fmt/format.h>

namespace convene::jinja {

using Type = Token::Type;

Token TokenStream::Take() {
  const Token& token = tokens_[position_];
  if (token.type != Type::kEnd) ++position_;
  return token;
}

bool TokenStream::AtOperator(std::string_view op) const {
  return current().type == Type::kOperator && current().text == op;
}

bool TokenStream::AtName(std::string_view name) const {
  return current().type == Type::kName && current().text == name;
}

bool TokenStream::SkipOperator(std::string_view op) {
  const bool skips = AtOperator(op);
  if (skips) Take();
  return skips;
}

bool TokenStream::SkipName(std::string_view name) {
  const bool skips = AtName(name);
  if (skips) Take();
  return skips;
}

Token TokenStream::Expect(Type type, std::string_view what) {
  if (!At(type)) {
    Fail(fmt::format("expected {}, got '{}'", what, DescribeToken(current())));
  }
  return Take();
}

void TokenStream::ExpectOperator(std::string_view op) {
  if (!SkipOperator(op)) {
    Fail(fmt::format("expected token '{}', got '{}'", op, DescribeToken(current())));
  }
}

void TokenStream::ExpectName(std::string_view name) {
  if (!SkipName(name)) {
    Fail(fmt::format("expected token '{}', got '{}'", name, DescribeToken(current())));
  }
}

void TokenStream::Fail(std::string_view message, int line) {
  if (!error_) error_ = Error{fmt::format("line {}: {}", line, message)};
  position_ = tokens_.size() - 1;
}

}  // namespace convene::jinja
