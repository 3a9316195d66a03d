#include "jinja/lexer.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/utf8.h"
#include "jinja/limits.h"
#include "jinja/python_text.h"
#include "jinja/string_literal.h"

namespace convene::jinja {
namespace {

using Type = Token::Type;

bool IsDigitToken(char c) { return c >= '0' && c <= '9'; }

// Every line break as "\n", without one at the end.
std::string NormalizeLines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      text += '\n';
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> Run() {
    while (pos_ < source_.size() && !error_) LexText();
    if (error_) return *error_;
    Emit(Type::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view Rest() const { return std::string_view(source_).substr(pos_); }
  bool At(std::string_view what) const { return Rest().starts_with(what); }

  void Fail(std::string_view message) {
    if (!error_) error_ = Error{fmt::format("line {}: {}", LineAt(pos_), message)};
  }

  // The line of a byte at or behind the last one asked for.
  int LineAt(size_t pos) {
    for (; counted_ < pos && counted_ < source_.size(); ++counted_) {
      if (source_[counted_] == '\n') ++line_;
    }
    return line_;
  }

  Token& Emit(Type type, std::string text) {
    return tokens_.emplace_back(Token{.type = type, .text = std::move(text), .line = LineAt(pos_)});
  }

  // The number of bytes of whitespace at `from`.
  size_t SpaceAt(size_t from) const {
    const std::string_view rest = std::string_view(source_).substr(from);
    return rest.size() - StripLeft(rest).size();
  }

  // Moves to `end`. Whether a tag that follows starts its line depends on how the match ended.
  void Advance(size_t end) {
    at_line_start_ = end > pos_ ? source_[end - 1] == '\n' : at_line_start_;
    pos_ = end;
  }

  // The data before a tag, with what the tag's sign (or lstrip_blocks) takes off its end.
  void EmitData(std::string_view data, char sign, bool is_variable) {
    if (sign == '-') {
      data = StripRight(data);
    } else if (sign != '+' && !is_variable) {
      const size_t line_start = data.rfind('\n') + 1;  // 0 where there is no newline
      if ((line_start > 0 || at_line_start_) && StripLeft(data.substr(line_start)).empty()) {
        data = data.substr(0, line_start);
      }
    }
    if (!data.empty()) Emit(Type::kData, std::string(data));
  }

  // Text up to the next tag, and that tag.
  void LexText() {
    size_t begin = pos_;
    while (begin < source_.size()) {
      begin = source_.find('{', begin);
      if (begin == std::string::npos || begin + 1 >= source_.size()) begin = source_.size();
      if (begin == source_.size() ||
          std::string_view("{%#").find(source_[begin + 1]) != std::string_view::npos) {
        break;
      }
      ++begin;
    }
    const std::string_view data = std::string_view(source_).substr(pos_, begin - pos_);
    if (begin == source_.size()) {
      if (!data.empty()) Emit(Type::kData, std::string(data));
      pos_ = begin;
      return;
    }
    const char kind = source_[begin + 1];
    const char next = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
    const char sign = next == '-' || next == '+' ? next : '\0';
    EmitData(data, sign, kind == '{');
    const size_t inside = begin + (sign == '\0' ? 2 : 3);
    pos_ = begin;
    if (kind == '#') {
      LexComment(inside);
    } else if (kind == '%' && RawTagEnd(inside, "raw", false) != std::string::npos) {
      LexRaw(RawTagEnd(inside, "raw", false));
    } else {
      Emit(kind == '{' ? Type::kVariableBegin : Type::kBlockBegin, "");
      Advance(inside);
      LexTag(kind == '{');
    }
  }

  void LexComment(size_t inside) {
    const size_t end = FindFirst(source_, "#}", inside);
    if (end == std::string::npos) return Fail("Missing end of comment tag");
    const char sign = end > inside ? source_[end - 1] : '\0';
    Advance(end + 2 + TrimmedAfter(end + 2, sign));
  }

  // What a closing tag with this sign before it takes off the text behind it.
  size_t TrimmedAfter(size_t end, char sign) const {
    if (sign == '-') return SpaceAt(end);
    return sign != '+' && end < source_.size() && source_[end] == '\n' ? 1 : 0;
  }

  // The end of a tag such as `{% raw %}` whose inside starts at `inside`; npos where it is another.
  size_t RawTagEnd(size_t inside, std::string_view name, bool trims_line) const {
    size_t pos = inside + SpaceAt(inside);
    if (source_.compare(pos, name.size(), name) != 0) return std::string::npos;
    pos += name.size();
    pos += SpaceAt(pos);
    char sign = '\0';
    if (pos < source_.size() && (source_[pos] == '-' || (trims_line && source_[pos] == '+'))) {
      sign = source_[pos++];
    }
    if (source_.compare(pos, 2, "%}") != 0) return std::string::npos;
    pos += 2;
    return pos + (trims_line || sign == '-' ? TrimmedAfter(pos, sign) : 0);
  }

  void LexRaw(size_t inside) {
    Advance(inside);
    for (size_t tag = FindFirst(source_, "{%", inside); tag != std::string::npos;
         tag = FindFirst(source_, "{%", tag + 1)) {
      const char next = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const char sign = next == '-' || next == '+' ? next : '\0';
      const size_t end = RawTagEnd(tag + (sign == '\0' ? 2 : 3), "endraw", true);
      if (end == std::string::npos) continue;
      EmitData(std::string_view(source_).substr(inside, tag - inside), sign, false);
      return Advance(end);
    }
    Fail("Missing end of raw directive");
  }

  // The tokens within a tag, and its end.
  void LexTag(bool is_variable) {
    std::string open;  // brackets: "%}" within them does not end the tag
    while (pos_ < source_.size() && !error_) {
      if (open.empty() && LexTagEnd(is_variable)) return;
      if (const size_t space = SpaceAt(pos_); space > 0) {
        Advance(pos_ + space);
      } else if (!LexNumber() && !LexName() && !LexString() && !LexOperator(&open)) {
        Fail(fmt::format("unexpected char '{}'", CharacterHere()));
      }
    }
  }

  std::string CharacterHere() const {
    size_t end = pos_;
    ReadCodePoint(source_, &end);
    return source_.substr(pos_, end - pos_);
  }

  bool LexTagEnd(bool is_variable) {
    const char sign = At("-") || (At("+") && !is_variable) ? source_[pos_] : '\0';
    const size_t close = pos_ + (sign == '\0' ? 0 : 1);
    if (source_.compare(close, 2, is_variable ? "}}" : "%}") != 0) return false;
    Emit(is_variable ? Type::kVariableEnd : Type::kBlockEnd, "");
    const bool trims = sign == '-' || !is_variable;
    Advance(close + 2 + (trims ? TrimmedAfter(close + 2, sign) : 0));
    return true;
  }

  // The end of digits that underscores may separate.
  size_t DigitsEnd(size_t pos) const {
    while (pos < source_.size() &&
           (IsDigitToken(source_[pos]) ||
            (source_[pos] == '_' && pos + 1 < source_.size() && IsDigitToken(source_[pos + 1])))) {
      ++pos;
    }
    return pos;
  }
  bool DigitAt(size_t pos) const { return pos < source_.size() && IsDigitToken(source_[pos]); }

  bool LexNumber() {
    if (!DigitAt(pos_)) return false;
    size_t end = DigitsEnd(pos_);
    bool is_float = false;
    if (pos_ == 0 || source_[pos_ - 1] != '.') {  // the 0.1 of x.0.1 is two subscripts
      if (end < source_.size() && source_[end] == '.' && DigitAt(end + 1)) {
        end = DigitsEnd(end + 1);
        is_float = true;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        const bool has_sign =
            end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
        if (const size_t exponent = end + (has_sign ? 2 : 1); DigitAt(exponent)) {
          end = DigitsEnd(exponent);
          is_float = true;
        }
      }
    }
    return is_float ? EmitFloat(end) : EmitInteger(end);
  }

  std::string WithoutUnderscores(size_t begin, size_t end) const {
    std::string digits;
    for (size_t i = begin; i < end; ++i) {
      if (source_[i] != '_') digits += source_[i];
    }
    return digits;
  }

  bool EmitFloat(size_t end) {
    const std::string digits = WithoutUnderscores(pos_, end);
    double number = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (parsed.ec != std::errc()) Fail(fmt::format("the number {} exceeds a double", digits));
    Emit(Type::kFloat, digits).number = number;
    Advance(end);
    return true;
  }

  bool EmitInteger(size_t end) {
    int base = 10;
    size_t digits_begin = pos_;
    if (source_[pos_] == '0') {
      end = pos_ + 1;  // 007 is no number: only zeros may follow
      while (end < source_.size() &&
             (source_[end] == '0' ||
              (source_[end] == '_' && end + 1 < source_.size() && source_[end + 1] == '0'))) {
        ++end;
      }
      if (const size_t prefixed = PrefixedEnd(&base); base != 10) {
        digits_begin = pos_ + 2;
        end = prefixed;
      }
    }
    const std::string digits = WithoutUnderscores(digits_begin, end);
    int64_t integer = 0;
    const auto parsed =
        std::from_chars(digits.data(), digits.data() + digits.size(), integer, base);
    if (parsed.ec != std::errc()) {
      Fail(fmt::format("the integer {} exceeds 64 bits", source_.substr(pos_, end - pos_)));
    }
    Emit(Type::kInteger, digits).integer = integer;
    Advance(end);
    return true;
  }

  // The end of 0x1F and the like; sets the base where there is such a number.
  size_t PrefixedEnd(int* base) const {
    if (pos_ + 1 >= source_.size()) return pos_;
    const char letter = static_cast<char>(source_[pos_ + 1] | 0x20);
    const int wanted = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    const auto is_digit = [&](size_t i) {
      if (i >= source_.size()) return false;
      const char c = source_[i];
      const int digit = IsDigitToken(c) ? c - '0' : (c | 0x20) >= 'a' ? (c | 0x20) - 'a' + 10 : 99;
      return digit < wanted;
    };
    size_t end = pos_ + 2;
    while (is_digit(end) || (end < source_.size() && source_[end] == '_' && is_digit(end + 1))) {
      ++end;
    }
    if (end > pos_ + 2) *base = wanted;
    return end;
  }

  bool LexName() {
    size_t end = pos_;
    if (!IsIdentifierStart(ReadCodePoint(source_, &end))) return false;
    for (size_t next = end; next < source_.size(); end = next) {
      if (!IsIdentifierPart(ReadCodePoint(source_, &next))) break;
    }
    Emit(Type::kName, source_.substr(pos_, end - pos_));
    Advance(end);
    return true;
  }

  bool LexString() {
    const char quote = source_[pos_];
    if (quote != '\'' && quote != '"') return false;
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) {
      Fail("a string is not closed");
      return true;
    }
    Result<std::string> text =
        UnescapeStringLiteral(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1));
    if (text) {
      Emit(Type::kString, *std::move(text));
    } else {
      Fail(text.error().message);
    }
    Advance(end + 1);
    return true;
  }

  bool LexOperator(std::string* open) {
    static constexpr std::string_view kOperators[] = {
        "**", "//", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view candidate : kOperators) {
      if (!At(candidate)) continue;
      const char c = candidate[0];
      if (c == '{' || c == '(' || c == '[') {
        *open += c == '{' ? '}' : c == '(' ? ')' : ']';
      } else if (c == '}' || c == ')' || c == ']') {
        if (open->empty()) {
          Fail(fmt::format("unexpected '{}'", c));
        } else if (open->back() != c) {
          Fail(fmt::format("unexpected '{}', expected '{}'", c, open->back()));
        } else {
          open->pop_back();
        }
      }
      Emit(Type::kOperator, std::string(candidate));
      Advance(pos_ + candidate.size());
      return true;
    }
    return false;
  }

  const std::string source_;
  size_t pos_ = 0;
  size_t counted_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::optional<Error> error_;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> Tokenize(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return Error{
        fmt::format("the template has {} bytes, the limit is {}", source.size(), kMaxSourceBytes)};
  }
  if (ValidUtf8Prefix(source) != source.size()) return Error{"the template is not valid UTF-8"};
  return Lexer(NormalizeLines(source)).Run();
}

std::string DescribeToken(const Token& token) {
  // By type; names and operators describe themselves.
  constexpr std::string_view kDescriptions[] = {"template data / text",
                                                "begin of statement block",
                                                "end of statement block",
                                                "begin of print statement",
                                                "end of print statement",
                                                "",
                                                "string",
                                                "integer",
                                                "float",
                                                "",
                                                "end of template"};
  static_assert(std::size(kDescriptions) == static_cast<size_t>(Type::kEnd) + 1);
  const std::string_view description = kDescriptions[static_cast<size_t>(token.type)];
  return description.empty() ? token.text : std::string(description);
}

}  // namespace convene::jinja
