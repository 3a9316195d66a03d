#include "jinja/escape.h"

#include "jinja/repr.h"

namespace convene::jinja {

std::string EscapeHtml(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value Escape(Run& run, const Value& value) {
  if (value.IsString() && value.String().safe) return value;
  return run.String(EscapeHtml(Str(run, value)), /*safe=*/true);
}

Value JoinTexts(Run& run, const Value& a, const Value& b) {
  const bool is_safe = a.String().safe || b.String().safe;
  if (!run.MayAllocate(a.Text().size() + b.Text().size())) return None{};
  if (!is_safe) return run.String(a.Text() + b.Text());
  const Value left = Escape(run, a), right = Escape(run, b);
  return run.String(left.Text() + right.Text(), /*safe=*/true);
}

}  // namespace convene::jinja
