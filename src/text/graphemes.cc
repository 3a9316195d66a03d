#include "text/graphemes.h"

#include <utf8proc.h>

#include "base/utf8.h"
#include "text/code_points.h"

namespace convene::text {

size_t GraphemeEnd(std::string_view text, size_t begin) {
  size_t end = begin;
  char32_t previous = ReadCodePoint(text, &end);
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    size_t next_end = end;
    const char32_t next = ReadCodePoint(text, &next_end);
    if (previous < 0x80 && next < 0x80 && previous != '\r') break;  // most text
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(GraphemeStandIn(previous)),
                                         static_cast<utf8proc_int32_t>(GraphemeStandIn(next)),
                                         &state)) {
      break;
    }
    previous = next;
    end = next_end;
  }
  return end;
}

}  // namespace convene::text
