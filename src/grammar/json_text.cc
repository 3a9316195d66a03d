#include "grammar/json_text.h"

#include <algorithm>
#include <vector>

namespace convene::grammar {
namespace {

using Element = Grammar::Element;
using Sequence = Grammar::Sequence;

constexpr int kMaxIndent = 20;
constexpr int kMaxDigits = 15;  // a double holds all of them
constexpr int kMaxExponentDigits = 2;

}  // namespace

Element JsonText::Space() {
  if (space_) return *space_;
  Element indent = grammar_.AddRule();
  grammar_.AddAlternative(indent, {});
  for (int i = 0; i < kMaxIndent; ++i) {
    const Element longer = grammar_.AddRule();
    grammar_.AddAlternative(longer, {});
    grammar_.AddAlternative(longer, {grammar_.Bytes(OneOf(" \t")), indent});
    indent = longer;
  }
  space_ = grammar_.AddRule();
  grammar_.AddAlternative(*space_, {});
  grammar_.AddAlternative(*space_, grammar_.Text(" "));
  grammar_.AddAlternative(*space_, {grammar_.Bytes(OneOf("\n")), indent});
  return *space_;
}

// Well-formed UTF-8 (the Unicode standard, table 3-7) without control characters; \u escapes of
// surrogates in pairs alone.
Element JsonText::StringCharacters() {
  Grammar& g = grammar_;
  const Element characters = g.AddRule();
  const auto range = [&](unsigned char first, unsigned char last) {
    return g.Bytes(ByteRange(first, last));
  };
  const Element tail = range(0x80, 0xbf);
  const auto add = [&](Sequence character) {
    character.push_back(characters);
    g.AddAlternative(characters, character);
  };
  g.AddAlternative(characters, {});
  ByteSet plain = ByteRange(0x20, 0x7f);
  plain.reset('"').reset('\\').reset(0x7f);
  add({g.Bytes(plain)});
  add({range(0xc2, 0xdf), tail});
  add({range(0xe0, 0xe0), range(0xa0, 0xbf), tail});
  add({g.Bytes(ByteRange(0xe1, 0xec) | ByteRange(0xee, 0xef)), tail, tail});
  add({range(0xed, 0xed), range(0x80, 0x9f), tail});
  add({range(0xf0, 0xf0), range(0x90, 0xbf), tail, tail});
  add({range(0xf1, 0xf3), tail, tail, tail});
  add({range(0xf4, 0xf4), range(0x80, 0x8f), tail, tail});
  const Element backslash = g.Bytes(OneOf("\\"));
  const Element u = g.Bytes(OneOf("u"));
  const Element d = g.Bytes(OneOf("dD"));
  const Element hex = g.Bytes(OneOf("0123456789abcdefABCDEF"));
  add({backslash, g.Bytes(OneOf("\"\\/bfnrt"))});
  add({backslash, u, g.Bytes(OneOf("0123456789abcefABCEF")), hex, hex, hex});
  add({backslash, u, d, range('0', '7'), hex, hex});
  add({backslash, u, d, g.Bytes(OneOf("89abAB")), hex, hex, backslash, u, d,
       g.Bytes(OneOf("cdefCDEF")), hex, hex});
  return characters;
}

Element JsonText::String() {
  if (string_) return *string_;
  const Element quote = grammar_.Bytes(OneOf("\""));
  const Element characters = StringCharacters();
  string_ = grammar_.AddRule();
  grammar_.AddAlternative(*string_, {quote, characters, quote});
  return *string_;
}

Element JsonText::Digits(int min, int max) {
  const auto found = digits_.find({min, max});
  if (found != digits_.end()) return found->second;
  const Element rule = grammar_.AddRule();
  digits_[{min, max}] = rule;
  if (min == 0) grammar_.AddAlternative(rule, {});
  if (max > 0) {
    grammar_.AddAlternative(
        rule, {grammar_.Bytes(ByteRange('0', '9')), Digits(std::max(min - 1, 0), max - 1)});
  }
  return rule;
}

Element JsonText::Integer() {
  if (integer_) return *integer_;
  const Element digits = grammar_.AddRule();
  grammar_.AddAlternative(digits, grammar_.Text("0"));
  grammar_.AddAlternative(digits, {grammar_.Bytes(ByteRange('1', '9')), Digits(0, kMaxDigits - 1)});
  integer_ = grammar_.AddRule();
  grammar_.AddAlternative(*integer_, {digits});
  grammar_.AddAlternative(*integer_, {grammar_.Bytes(OneOf("-")), digits});
  return *integer_;
}

Element JsonText::Number() {
  if (number_) return *number_;
  const Element fraction = grammar_.AddRule();
  grammar_.AddAlternative(fraction, {});
  grammar_.AddAlternative(fraction, {grammar_.Bytes(OneOf(".")), Digits(1, kMaxDigits)});
  const Element sign = grammar_.AddRule();
  grammar_.AddAlternative(sign, {});
  grammar_.AddAlternative(sign, {grammar_.Bytes(OneOf("+-"))});
  const Element exponent = grammar_.AddRule();
  grammar_.AddAlternative(exponent, {});
  grammar_.AddAlternative(exponent,
                          {grammar_.Bytes(OneOf("eE")), sign, Digits(1, kMaxExponentDigits)});
  const Element integer = Integer();
  number_ = grammar_.AddRule();
  grammar_.AddAlternative(*number_, {integer, fraction, exponent});
  return *number_;
}

Element JsonText::Value(int depth) {
  const auto found = values_.find(depth);
  if (found != values_.end()) return found->second;
  const Element rule = grammar_.AddRule();
  values_[depth] = rule;
  for (const Element& part : {String(), Number()}) grammar_.AddAlternative(rule, {part});
  for (const char* word : {"true", "false", "null"}) {
    grammar_.AddAlternative(rule, grammar_.Text(word));
  }
  if (depth > 0) {
    grammar_.AddAlternative(rule, {Object(depth)});
    grammar_.AddAlternative(rule, {ArrayOf(Value(depth - 1), 0, std::nullopt)});
  }
  return rule;
}

Element JsonText::Object(int depth) {
  const auto found = objects_.find(depth);
  if (found != objects_.end()) return found->second;
  const Element rule = ObjectOf(Value(depth - 1));
  objects_[depth] = rule;
  return rule;
}

Element JsonText::ObjectOf(Element value) {
  Grammar& g = grammar_;
  const Element space = Space();
  const Element member = g.AddRule();
  g.AddAlternative(member, {String(), g.Bytes(OneOf(":")), space, value});
  const Element close = g.Bytes(OneOf("}"));
  const Element rest = g.AddRule();
  g.AddAlternative(rest, {g.Bytes(OneOf(",")), space, member, rest});
  g.AddAlternative(rest, {space, close});
  const Element object = g.AddRule();
  g.AddAlternative(object, {g.Bytes(OneOf("{")), space, close});
  g.AddAlternative(object, {g.Bytes(OneOf("{")), space, member, rest});
  return object;
}

Element JsonText::ArrayOf(Element value, int min, std::optional<int> max) {
  Grammar& g = grammar_;
  const Element space = Space();
  const Element comma = g.Bytes(OneOf(","));
  const Element close = g.Bytes(OneOf("]"));
  // What may follow when all that must be there is: nothing more, or as much as may be.
  const int num_counted = max.value_or(min);
  Element rest = g.AddRule();
  g.AddAlternative(rest, {space, close});
  if (!max) g.AddAlternative(rest, {comma, space, value, rest});
  // From the last value to the first: rest follows value number i.
  for (int i = num_counted - 1; i >= 1; --i) {
    const Element before = g.AddRule();
    if (i >= min) g.AddAlternative(before, {space, close});
    g.AddAlternative(before, {comma, space, value, rest});
    rest = before;
  }
  const Element array = g.AddRule();
  const Element open = g.Bytes(OneOf("["));
  if (min == 0) g.AddAlternative(array, {open, space, close});
  if (!max || *max > 0) g.AddAlternative(array, {open, space, value, rest});
  return array;
}

}  // namespace convene::grammar
