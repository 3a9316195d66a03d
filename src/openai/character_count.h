// Counts the characters of a text that comes in pieces, such as tokens, which may cut characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace convene::openai {

class CharacterCount {
 public:
  void Add(std::string_view bytes);

  // Characters that are whole so far, which is where the next piece begins or, if it is the rest of
  // a character, where that begins. Bytes that are no UTF-8 count as the U+FFFD in their place.
  size_t num_whole() const { return num_whole_; }

 private:
  size_t num_whole_ = 0;
  std::string cut_;  // the beginning of one more
};

}  // namespace convene::openai
