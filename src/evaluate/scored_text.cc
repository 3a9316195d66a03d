#include "evaluate/scored_text.h"

#include <algorithm>

namespace convene::evaluate {

std::vector<std::span<const int32_t>> ScoredText::Windows() const {
  const auto size = static_cast<size_t>(window);
  std::vector<std::span<const int32_t>> windows;
  for (size_t begin = 0; begin < tokens.size(); begin += size) {
    windows.push_back(
        std::span<const int32_t>(tokens).subspan(begin, std::min(size, tokens.size() - begin)));
  }
  return windows;
}

int64_t ScoredText::num_scored() const {
  return std::ssize(tokens) - (std::ssize(tokens) + window - 1) / window;
}

}  // namespace convene::evaluate
