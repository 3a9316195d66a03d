#include "token_mutator.h"

#include <charconv>
#include <iterator>

namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsWordCharacter(char c) {
  return IsDigit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Where the number at `begin` ends: digits, a fraction, an exponent.
size_t EndOfNumber(std::string_view text, size_t begin) {
  size_t at = begin;
  const auto skip_digits = [&] {
    while (at < text.size() && IsDigit(text[at])) ++at;
  };
  skip_digits();
  if (at + 1 < text.size() && text[at] == '.' && IsDigit(text[at + 1])) {
    ++at;
    skip_digits();
  }
  if (at + 1 < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    const bool is_signed = text[at + 1] == '-' || text[at + 1] == '+';
    const size_t digits = at + (is_signed ? 2 : 1);
    if (digits < text.size() && IsDigit(text[digits])) {
      at = digits;
      skip_digits();
    }
  }
  return at;
}

// Where the string that begins with a quote at `begin` ends; npos where it does not.
size_t EndOfString(std::string_view text, size_t begin) {
  for (size_t at = begin + 1; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == text[begin]) {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

}  // namespace

std::vector<TokenMutator::Token> TokenMutator::FindTokens(std::string_view text) {
  std::vector<Token> tokens;
  std::vector<size_t> open;  // brackets
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (IsDigit(c)) {
      const size_t begin = at > 0 && text[at - 1] == '-' ? at - 1 : at;
      at = EndOfNumber(text, at);
      tokens.push_back({Token::Kind::kNumber, begin, at});
      continue;
    }
    if (IsWordCharacter(c)) {
      // A number that ends a word is found again: names have degrees and indices there.
      const size_t begin = at;
      while (at < text.size() && IsWordCharacter(text[at]) && !IsDigit(text[at])) ++at;
      tokens.push_back({Token::Kind::kWord, begin, at});
      continue;
    }
    if (c == '"' || c == '\'') {
      const size_t end = EndOfString(text, at);
      if (end != std::string_view::npos) tokens.push_back({Token::Kind::kString, at, end});
    } else if (c == '[' || c == '{' || c == '(') {
      open.push_back(at);
    } else if ((c == ']' || c == '}' || c == ')') && !open.empty()) {
      tokens.push_back({Token::Kind::kGroup, open.back(), at + 1});
      open.pop_back();
    }
    ++at;
  }
  return tokens;
}

// Numbers at which programs go wrong: nothing, limits of types, and the neighbours of `number`.
std::string TokenMutator::OtherNumber(std::string_view number) {
  static constexpr std::string_view kNumbers[] = {"0",
                                                  "0",
                                                  "1",
                                                  "-1",
                                                  "2",
                                                  "3",
                                                  "7",
                                                  "8",
                                                  "64",
                                                  "100",
                                                  "255",
                                                  "256",
                                                  "1000",
                                                  "4096",
                                                  "65535",
                                                  "65536",
                                                  "1000000",
                                                  "2147483647",
                                                  "2147483648",
                                                  "-2147483648",
                                                  "4294967295",
                                                  "4294967296",
                                                  "9223372036854775807",
                                                  "9223372036854775808",
                                                  "-9223372036854775808",
                                                  "18446744073709551615",
                                                  "18446744073709551616",
                                                  "0.0",
                                                  "-0.0",
                                                  "0.5",
                                                  "-0.5",
                                                  "1.0",
                                                  "1e9",
                                                  "1e19",
                                                  "1e308",
                                                  "-1e308",
                                                  "1e-308",
                                                  "1e400"};
  int64_t value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool is_small = error == std::errc() && end == number.data() + number.size() &&
                        value > -(int64_t{1} << 62) && value < int64_t{1} << 62;
  if (!is_small || Below(2) == 0) return std::string(kNumbers[Below(std::size(kNumbers))]);
  const int64_t others[] = {value + 1, value - 1, value + 2,  value - 2, value / 2,
                            value * 2, -value,    value + 10, value + 8, value - 8};
  return std::to_string(others[Below(std::size(others))]);
}

std::string TokenMutator::OtherValue() {
  static constexpr std::string_view kValues[] = {"null", "true", "false", "\"\"", "[]", "{}",
                                                 "0",    "-1",   "()",    "[[]]", "''", "1e400"};
  return std::string(kValues[Below(std::size(kValues))]);
}

bool TokenMutator::Change(std::string* text) {
  const std::vector<Token> tokens = FindTokens(*text);
  if (tokens.empty()) return false;
  const Token& token = tokens[Below(tokens.size())];
  const Token& other = tokens[Below(tokens.size())];
  const size_t size = token.end - token.begin;
  const std::string piece = text->substr(token.begin, size);
  const std::string other_piece = text->substr(other.begin, other.end - other.begin);
  switch (Below(8)) {
    case 0:
    case 1:
    case 2:
      if (token.kind == Token::Kind::kNumber) {
        text->replace(token.begin, size, OtherNumber(piece));
        break;
      }
      [[fallthrough]];
    case 3:
      text->replace(token.begin, size, other_piece);
      break;
    case 4: {  // leave it out, and the comma behind it
      const size_t comma = text->find_first_not_of(' ', token.end);
      const bool has_comma = comma != std::string::npos && (*text)[comma] == ',';
      text->erase(token.begin, (has_comma ? comma + 1 : token.end) - token.begin);
      break;
    }
    case 5:  // twice
      text->insert(token.end, (Below(2) == 0 ? "," : " ") + piece);
      break;
    case 6:
      text->replace(token.begin, size, OtherValue());
      break;
    default:
      text->insert(token.end, (Below(2) == 0 ? "," : " ") + other_piece);
      break;
  }
  return true;
}
