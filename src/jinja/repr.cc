#include "jinja/repr.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/python_text.h"
#include "jinja/syntax.h"

namespace convene::jinja {
namespace {

class Printer {
 public:
  Printer(Run& run, std::string& out) : run_(run), out_(out) {}

  void Print(const Value& value) {
    // Lists are not deep, but a namespace may contain itself.
    if (++depth_ > 2 * kMaxValueDepth) run_.Fail("a value to print contains itself");
    if (out_.size() > run_.limits().max_output_bytes) {
      run_.Fail(
          fmt::format("a value prints as more than {} bytes", run_.limits().max_output_bytes));
    }
    if (run_.Spend()) PrintKind(value);
    --depth_;
  }

 private:
  void PrintKind(const Value& value) {
    switch (value.kind()) {
      case Kind::kUndefined:
        out_ += "Undefined";
        break;
      case Kind::kNone:
        out_ += "None";
        break;
      case Kind::kBool:
        out_ += value.Bool() ? "True" : "False";
        break;
      case Kind::kInt:
        out_ += fmt::format("{}", value.Int());
        break;
      case Kind::kFloat:
        out_ += FloatText(value.Float());
        break;
      case Kind::kString:
        if (!run_.SpendText(value.Text().size())) return;
        out_ += value.String().safe ? fmt::format("Markup({})", QuoteText(value.Text()))
                                    : QuoteText(value.Text());
        break;
      case Kind::kList:
        PrintElements("[", value.Elements(), "]");
        break;
      case Kind::kTuple:
        PrintElements("(", value.Elements(), value.Elements().size() == 1 ? ",)" : ")");
        break;
      case Kind::kDict:
        PrintEntries(value.AsDict().entries);
        break;
      case Kind::kDictView:
        PrintView(value.Get<DictView>(), TypeName(value));
        break;
      case Kind::kRange:
        PrintRange(value.AsRange());
        break;
      case Kind::kNamespace:
        out_ += "<Namespace ";
        PrintEntries(value.AsNamespace().attributes);
        out_ += ">";
        break;
      case Kind::kLoop: {
        Loop& loop = *value.Get<std::shared_ptr<Loop>>();
        out_ += fmt::format("<LoopContext {}/{}>", loop.index0 + 1, loop.Length());
        break;
      }
      case Kind::kMacro: {
        const std::string& name = value.Get<MacroValue>().macro->name;
        out_ += name.empty() ? "<Macro anonymous>" : fmt::format("<Macro {}>", QuoteText(name));
        break;
      }
      default:
        run_.Fail(
            fmt::format("printing a value of type '{}' is not supported (Python would print "
                        "a memory address); use the filter 'list' on a generator",
                        TypeName(value)));
    }
  }

  void PrintElements(std::string_view open, const Values& elements, std::string_view close) {
    out_ += open;
    for (size_t i = 0; i < elements.size() && !run_.failed(); ++i) {
      if (i > 0) out_ += ", ";
      Print(elements[i]);
    }
    out_ += close;
  }

  void PrintKey(const Value& key) { Print(key); }
  void PrintKey(const std::string& key) { out_ += QuoteText(key); }

  template <typename Entries>
  void PrintEntries(const Entries& entries) {
    out_ += "{";
    for (size_t i = 0; i < entries.size() && !run_.failed(); ++i) {
      if (i > 0) out_ += ", ";
      PrintKey(entries[i].first);
      out_ += ": ";
      Print(entries[i].second);
    }
    out_ += "}";
  }

  void PrintView(const DictView& view, std::string_view type) {
    out_ += fmt::format("{}([", type);
    const auto& entries = view.dict->entries;
    for (size_t i = 0; i < entries.size() && !run_.failed(); ++i) {
      if (i > 0) out_ += ", ";
      const auto& [key, value] = entries[i];
      if (view.part == DictView::Part::kItems) {
        out_ += "(";
        Print(key);
        out_ += ", ";
        Print(value);
        out_ += ")";
      } else {
        Print(view.part == DictView::Part::kKeys ? key : value);
      }
    }
    out_ += "])";
  }

  void PrintRange(const Range& range) {
    out_ += range.step == 1 ? fmt::format("range({}, {})", range.start, range.stop)
                            : fmt::format("range({}, {}, {})", range.start, range.stop, range.step);
  }

  Run& run_;
  std::string& out_;
  int depth_ = 0;
};

}  // namespace

std::string Str(Run& run, const Value& value) {
  if (value.IsString()) return value.Text();
  if (value.IsUndefined() || value.IsMissing()) return "";
  return Repr(run, value);
}

Value ToString(Run& run, const Value& value) {
  return value.IsString() ? value : run.String(Str(run, value));
}

void AppendRepr(Run& run, const Value& value, std::string& out) { Printer(run, out).Print(value); }

std::string Repr(Run& run, const Value& value) {
  std::string out;
  AppendRepr(run, value, out);
  return out;
}

std::string QuoteText(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = ReadCodePoint(text, &pos);
    const auto code = static_cast<uint32_t>(c);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (IsPrintable(c)) {
      AppendUtf8(c, &out);
    } else {
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // Digits and exponent of the shortest form, which Python lays out by its own rule.
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);

  std::string out = is_negative ? "-" : "";
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (num_digits > 1) out += "." + digits.substr(1);
    out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (num_digits <= exponent + 1) {
    out += digits + std::string(static_cast<size_t>(exponent + 1 - num_digits), '0') + ".0";
  } else {
    out += digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
           digits.substr(static_cast<size_t>(exponent) + 1);
  }
  return out;
}

}  // namespace convene::jinja
