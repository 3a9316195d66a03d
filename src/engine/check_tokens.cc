#include "engine/check_tokens.h"

#include <fmt/format.h>

namespace convene::engine {

Status CheckTokens(std::span<const int32_t> tokens, int vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size) {
      return Error{fmt::format("token id {} at index {} is outside the model's vocabulary of {}",
                               tokens[i], i, vocab_size)};
    }
  }
  return {};
}

}  // namespace convene::engine
