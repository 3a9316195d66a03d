#include "grammar/grammar.h"

#include <algorithm>
#include <map>
#include <string>

namespace convene::grammar {

ByteSet ByteRange(unsigned char first, unsigned char last) {
  ByteSet bytes;
  for (size_t byte = first; byte <= last; ++byte) bytes.set(byte);
  return bytes;
}

ByteSet OneOf(std::string_view bytes) {
  ByteSet set;
  for (const char byte : bytes) set.set(static_cast<unsigned char>(byte));
  return set;
}

Grammar::Element Grammar::AddRule() {
  rules_.emplace_back();
  return {Element::Kind::kRule, static_cast<uint32_t>(rules_.size() - 1)};
}

void Grammar::AddAlternative(Element rule, const Sequence& sequence) {
  rules_[rule.index].push_back(static_cast<uint32_t>(elements_.size()));
  elements_.insert(elements_.end(), sequence.begin(), sequence.end());
  elements_.push_back({Element::Kind::kEnd, 0});
}

Grammar::Element Grammar::Bytes(const ByteSet& bytes) {
  const auto found = std::ranges::find(byte_sets_, bytes);
  if (found != byte_sets_.end()) {
    return {Element::Kind::kBytes, static_cast<uint32_t>(found - byte_sets_.begin())};
  }
  byte_sets_.push_back(bytes);
  return {Element::Kind::kBytes, static_cast<uint32_t>(byte_sets_.size() - 1)};
}

void Grammar::Append(Sequence* sequence, const Sequence& more) {
  sequence->insert(sequence->end(), more.begin(), more.end());
}

void Grammar::AppendText(Sequence* sequence, std::string_view text) {
  for (const char byte : text) sequence->push_back(Bytes(OneOf({&byte, 1})));
}

Grammar::Sequence Grammar::Text(std::string_view text) {
  Sequence sequence;
  AppendText(&sequence, text);
  return sequence;
}

Grammar::Element Grammar::TextUntil(std::string_view end) { return TextAround(end, true); }

Grammar::Element Grammar::TextWithout(std::string_view end) { return TextAround(end, false); }

Grammar::Element Grammar::TextAround(std::string_view end, bool comes) {
  // Rule k: k bytes of `end` have been matched.
  std::vector<Element> rules;
  for (size_t k = 0; k < end.size(); ++k) rules.push_back(AddRule());
  for (size_t k = 0; k < end.size(); ++k) {
    std::map<size_t, ByteSet> bytes_to;  // by how many bytes are matched behind them
    for (int byte = 0; byte < 256; ++byte) {
      const std::string read = std::string(end.substr(0, k)) + static_cast<char>(byte);
      size_t matched = std::min(read.size(), end.size());
      while (!std::string_view(read).ends_with(end.substr(0, matched))) --matched;
      bytes_to[matched].set(static_cast<size_t>(byte));
    }
    for (const auto& [matched, bytes] : bytes_to) {
      Sequence alternative = {Bytes(bytes)};
      if (matched < end.size()) alternative.push_back(rules[matched]);
      if (matched < end.size() || comes) AddAlternative(rules[k], alternative);
    }
    if (!comes) AddAlternative(rules[k], {});
  }
  return rules[0];
}

}  // namespace convene::grammar
