// The parts of JSON that need no schema, as rules: space, strings, numbers, any value.
#pragma once

#include <map>
#include <optional>
#include <utility>

#include "grammar/grammar.h"

namespace convene::grammar {

// Rules are made when they are first asked for.
class JsonText {
 public:
  using Element = Grammar::Element;

  explicit JsonText(Grammar* grammar) : grammar_(*grammar) {}

  // Nothing, a space, or a line break and spaces.
  Element Space();
  Element String();
  Element Integer();
  Element Number();
  // `depth`: of arrays and objects within it; 0: none.
  Element Value(int depth);
  Element Object(int depth);

  // {"KEY": value, ...} with any keys, [value, ...] with any number of values from `min` to `max`.
  Element ObjectOf(Element value);
  Element ArrayOf(Element value, int min, std::optional<int> max);

 private:
  Element Digits(int min, int max);
  Element StringCharacters();

  Grammar& grammar_;
  std::optional<Element> space_, string_, integer_, number_;
  std::map<std::pair<int, int>, Element> digits_;
  std::map<int, Element> values_, objects_;
};

}  // namespace convene::grammar
