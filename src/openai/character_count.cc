#include "openai/character_count.h"

#include "base/utf8.h"

namespace convene::openai {

void CharacterCount::Add(std::string_view bytes) {
  cut_ += bytes;
  std::string_view rest = cut_;
  while (!rest.empty()) {
    const Utf8Unit unit = NextUtf8(rest);
    if (unit.kind == Utf8Kind::kCut) break;
    rest.remove_prefix(unit.length);
    ++num_whole_;
  }
  cut_ = std::string(rest);
}

}  // namespace convene::openai
