// What texts there may be, as rules over bytes: a context-free grammar whose alternatives are
// sequences of sets of bytes and of rules. It is data; automaton.h follows texts through it.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace convene::grammar {

using ByteSet = std::bitset<256>;

// The bytes from `first` to `last`, inclusive.
ByteSet ByteRange(unsigned char first, unsigned char last);
ByteSet OneOf(std::string_view bytes);

class Grammar {
 public:
  // A set of bytes or a rule, by their index.
  struct Element {
    enum class Kind : uint8_t { kBytes, kRule, kEnd };
    Kind kind;
    uint32_t index;
  };
  using Sequence = std::vector<Element>;

  // A rule without alternatives; it matches nothing until it has some. A rule must not come to
  // itself again before a byte was matched.
  Element AddRule();
  void AddAlternative(Element rule, const Sequence& sequence);

  Element Bytes(const ByteSet& bytes);
  static void Append(Sequence* sequence, const Sequence& more);
  void AppendText(Sequence* sequence, std::string_view text);
  Sequence Text(std::string_view text);

  // Any text up to `end`, which comes once, at its end, and any text without it (Knuth, Morris and
  // Pratt, 1977, as rules). `end` must not be empty.
  Element TextUntil(std::string_view end);
  Element TextWithout(std::string_view end);

  void SetRoot(Element rule) { root_ = rule.index; }
  uint32_t root() const { return root_; }

  // How much of it there is, which bounds what reading a schema may make.
  size_t num_elements() const { return elements_.size(); }

  // Positions are indices of elements; each alternative ends with a kEnd.
  const Element& element(uint32_t position) const { return elements_[position]; }
  const std::vector<uint32_t>& alternatives(uint32_t rule) const { return rules_[rule]; }
  bool Matches(const Element& bytes, unsigned char byte) const {
    return byte_sets_[bytes.index][byte];
  }

 private:
  Element TextAround(std::string_view end, bool comes);

  std::vector<Element> elements_;
  std::vector<std::vector<uint32_t>> rules_;  // where each alternative begins
  std::vector<ByteSet> byte_sets_;
  uint32_t root_ = 0;
};

}  // namespace convene::grammar
