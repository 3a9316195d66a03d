#include "jinja/percent_format.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "jinja/escape.h"
#include "jinja/format_spec.h"
#include "jinja/python_text.h"
#include "jinja/repr.h"

namespace convene::jinja {
namespace {

class PercentFormatter {
 public:
  PercentFormatter(Run& run, const StringData& format, const Value& arguments)
      : run_(run), text_(format.text), escapes_(format.safe), arguments_(arguments) {}

  std::string Format() {
    std::string out;
    while (pos_ < text_.size() && !run_.failed()) {
      const size_t percent = std::min(text_.find('%', pos_), text_.size());
      out += text_.substr(pos_, percent - pos_);
      pos_ = percent;
      if (pos_ < text_.size()) out += FormatOne();
      if (!run_.MayAllocate(out.size())) break;
    }
    const bool is_mapping = arguments_.Is(Kind::kDict) || arguments_.Is(Kind::kList);
    const size_t num_given =
        arguments_.Is(Kind::kTuple) ? arguments_.Elements().size() : (is_mapping ? 0 : 1);
    if (num_used_ < num_given) run_.Fail("not all arguments converted during string formatting");
    return out;
  }

 private:
  bool At(std::string_view set) const {
    return pos_ < text_.size() && set.find(text_[pos_]) != std::string_view::npos;
  }

  int64_t ReadNumber() {
    int64_t number = 0;
    for (; At("0123456789"); ++pos_) {
      number = std::min<int64_t>(number * 10 + (text_[pos_] - '0'), int64_t{1} << 40);
    }
    if (At("*")) run_.Fail("'*' in a format such as '%*d' is not supported");
    return number;
  }

  // A conversion, from its '%' to its letter.
  std::string FormatOne() {
    ++pos_;
    const Value named = At("(") ? ReadNamed() : Value();
    FormatSpec spec;
    bool pads_with_zeros = false, is_left = false;
    for (; At("-+ #0"); ++pos_) {
      const char flag = text_[pos_];
      is_left |= flag == '-';
      pads_with_zeros |= flag == '0';
      spec.alternate |= flag == '#';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
    }
    spec.width = ReadNumber();
    if (At(".")) {
      ++pos_;
      spec.precision = ReadNumber();
    }
    if (pos_ >= text_.size()) {
      run_.Fail("incomplete format");
      return "";
    }
    spec.type = text_[pos_++];
    if (spec.type == '%') return "%";
    if (is_left) {
      spec.align = '<';
    } else if (pads_with_zeros && std::string_view("srac").find(spec.type) == std::string::npos) {
      spec.align = '=';
      spec.fill = '0';
    } else {
      spec.align = '>';
    }
    const Value value = named.IsMissing() ? NextArgument() : named;
    return run_.failed() ? "" : FormatArgument(value, spec);
  }

  Value ReadNamed() {
    const size_t end = text_.find(')', pos_);
    if (end == std::string_view::npos) return run_.Fail("incomplete format key");
    const std::string_view name = text_.substr(pos_ + 1, end - pos_ - 1);
    pos_ = end + 1;
    if (!arguments_.Is(Kind::kDict)) return run_.Fail("format requires a mapping");
    const Value* found = arguments_.AsDict().Find(name);
    if (found == nullptr) return run_.Fail(fmt::format("no key '{}' for a format", name));
    return *found;
  }

  Value NextArgument() {
    const size_t index = num_used_++;
    if (arguments_.Is(Kind::kTuple)) {
      if (index < arguments_.Elements().size()) return arguments_.Elements()[index];
    } else if (index == 0) {
      return arguments_;
    }
    return run_.Fail("not enough arguments for format string");
  }

  std::string FormatArgument(const Value& value, const FormatSpec& spec) {
    switch (spec.type) {
      case 's':
      case 'r':
        return FormatText(spec.type == 's' ? Str(run_, value) : Repr(run_, value),
                          value.IsString() && value.String().safe && spec.type == 's', spec);
      case 'd':
      case 'i':
      case 'u':
        return FormatDecimal(value, spec);
      case 'x':
      case 'X':
      case 'o':
        if (!value.IsInteger()) return FailType(value, "an integer", spec);
        return FormatDigits(value.Int(), spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (!value.IsNumber()) return FailType(value, "a real number", spec);
        return FormatFloat(run_, value.Float(), spec);
      default:
        run_.Fail(fmt::format("the format character '{}' is not supported", spec.type));
        return "";
    }
  }

  std::string FailType(const Value& value, std::string_view wanted, const FormatSpec& spec) {
    run_.Fail(value.IsUndefined() ? value.AsUndefined().message
                                  : fmt::format("%{} format: {} is required, not {}", spec.type,
                                                wanted, TypeName(value)));
    return "";
  }

  std::string FormatText(std::string text, bool is_safe, const FormatSpec& spec) {
    if (escapes_ && !is_safe) text = EscapeHtml(text);
    std::string_view shown = text;
    if (spec.precision >= 0) {
      shown = shown.substr(0, ByteOffset(shown, static_cast<size_t>(spec.precision)));
    }
    return Pad(run_, shown, spec, '>');
  }

  std::string FormatDecimal(const Value& value, FormatSpec spec) {
    if (!value.IsNumber()) return FailType(value, "a real number", spec);
    spec.type = 'd';
    if (value.IsInteger()) return FormatDigits(value.Int(), spec);
    const double whole = std::trunc(value.Float());
    if (!(std::fabs(whole) < 9.2e18)) {
      run_.Fail("a number beyond 64 bits cannot be formatted as an integer");
      return "";
    }
    return FormatDigits(static_cast<int64_t>(whole), spec);
  }

  // Here a precision is the least number of digits.
  std::string FormatDigits(int64_t value, const FormatSpec& spec) {
    if (spec.precision < 0) return FormatInteger(run_, value, spec);
    run_.Fail("a precision for an integer in a % format is not supported");
    return "";
  }

  Run& run_;
  const std::string_view text_;
  const bool escapes_;
  const Value& arguments_;
  size_t pos_ = 0;
  size_t num_used_ = 0;
};

}  // namespace

Value PercentFormat(Run& run, const Value& format, const Value& arguments) {
  if (!run.SpendText(format.Text().size())) return None{};
  std::string text = PercentFormatter(run, format.String(), arguments).Format();
  return run.String(std::move(text), format.String().safe);
}

}  // namespace convene::jinja
