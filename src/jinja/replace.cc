#include "jinja/replace.h"

#include "jinja/python_text.h"

namespace convene::jinja {

std::string ReplaceText(Run& run, std::string_view text, std::string_view old_part,
                        std::string_view new_part, int64_t max_count) {
  std::string out;
  size_t begin = 0;
  for (int64_t count = 0; count != max_count; ++count) {
    const size_t from = old_part.empty() && count > 0 ? begin + 1 : begin;
    size_t found = FindFirst(text, old_part, from);
    if (found == std::string_view::npos) break;
    // An empty part is found between the bytes of a character, too.
    while (found < text.size() && (static_cast<unsigned char>(text[found]) & 0xC0) == 0x80) {
      ++found;
    }
    if (!run.SpendText(found - begin + old_part.size() + new_part.size()) ||
        !run.MayAllocate(out.size() + new_part.size() + text.size())) {
      return "";
    }
    out += text.substr(begin, found - begin);
    out += new_part;
    begin = found + old_part.size();
  }
  if (!run.SpendText(text.size() - begin)) return "";
  out += text.substr(begin);
  return out;
}

}  // namespace convene::jinja
