// Lexer: the source of a template as tokens, with Jinja's whitespace control as transformers sets
// it (trim_blocks and lstrip_blocks on, one trailing newline dropped). It knows no grammar.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace convene::jinja {

struct Token {
  enum class Type : uint8_t {
    kData,           // text outside of tags
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kName,
    kString,  // `text` is its value
    kInteger,
    kFloat,
    kOperator,  // `text` is one of + - * / // % ** ~ == != < <= > >= = . : | , ; ( ) [ ] { }
    kEnd,
  };
  Type type = Type::kEnd;
  std::string text;
  int line = 1;
  int64_t integer = 0;
  double number = 0;
};

// The tokens of a whole source, kEnd last. The error gives the line.
Result<std::vector<Token>> Tokenize(std::string_view source);

// How an error message names a token, as in "got 'end of print statement'".
std::string DescribeToken(const Token& token);

}  // namespace convene::jinja
