#include "jinja/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/utf8.h"
#include "jinja/compare.h"
#include "jinja/repr.h"

namespace convene::jinja {
namespace {

using nlohmann::ordered_json;

Value FromUnsigned(Run& run, uint64_t number) {
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max();
  if (number > uint64_t{kLimit}) {
    return run.Fail(fmt::format("the integer {} is too large, the limit is {}", number, kLimit));
  }
  return static_cast<int64_t>(number);
}

Value FromString(Run& run, const std::string& text) {
  if (ValidUtf8Prefix(text) != text.size()) {
    return run.Fail("the conversation has text that is not valid UTF-8");
  }
  return run.String(text);
}

Value FromJson(Run& run, const ordered_json& json, int depth) {
  if (depth > kMaxValueDepth) {
    return run.Fail(fmt::format("JSON is nested deeper than {}", kMaxValueDepth));
  }
  if (!run.Spend()) return None{};
  switch (json.type()) {
    case ordered_json::value_t::boolean:
      return json.get<bool>();
    case ordered_json::value_t::number_integer:
      return json.get<int64_t>();
    case ordered_json::value_t::number_unsigned:
      return FromUnsigned(run, json.get<uint64_t>());
    case ordered_json::value_t::number_float:
      return json.get<double>();
    case ordered_json::value_t::string:
      return FromString(run, json.get_ref<const std::string&>());
    case ordered_json::value_t::array: {
      Values values;
      values.reserve(json.size());
      for (const ordered_json& element : json) {
        values.push_back(FromJson(run, element, depth + 1));
      }
      return run.NewList(std::move(values));
    }
    case ordered_json::value_t::object: {
      std::vector<Dict::Entry> entries;
      entries.reserve(json.size());
      for (const auto& [key, value] : json.items()) {
        entries.emplace_back(FromString(run, key), FromJson(run, value, depth + 1));
      }
      return run.NewDict(std::move(entries));
    }
    default:
      return None{};
  }
}

// Builds values as nlohmann's parser reports them, so that limits hold while it reads.
class ValueBuilder : public nlohmann::json_sax<ordered_json> {
 public:
  explicit ValueBuilder(Run& run) : run_(run) {}
  Value Take() { return std::move(result_); }

  bool null() override { return Add(None{}); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override { return Add(FromUnsigned(run_, value)); }
  bool number_float(number_float_t value, const string_t&) override { return Add(double{value}); }
  bool string(string_t& text) override { return Add(FromString(run_, text)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool key(string_t& text) override {
    open_.back().keys.push_back(FromString(run_, text));
    return Count();
  }
  bool end_object() override {
    Level level = std::move(open_.back());
    open_.pop_back();
    std::vector<Dict::Entry> entries;
    for (size_t i = 0; i < level.values.size(); ++i) {
      entries.emplace_back(std::move(level.keys[i]), std::move(level.values[i]));
    }
    return Add(run_.NewDict(std::move(entries)));
  }
  bool end_array() override {
    Level level = std::move(open_.back());
    open_.pop_back();
    return Add(run_.NewList(std::move(level.values)));
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    run_.Fail(fmt::format("the text is not JSON (at byte {})", position));
    return false;
  }

 private:
  struct Level {
    Values keys, values;
  };
  // What is read but not yet part of a list or dict is not accounted for by the run.
  bool Count() { return run_.Spend() && run_.MayAllocate(++num_read_ * sizeof(Value)); }
  bool Open() {
    open_.emplace_back();
    if (open_.size() > kMaxValueDepth) {
      run_.Fail(fmt::format("JSON is nested deeper than {}", kMaxValueDepth));
    }
    return run_.Spend();
  }
  bool Add(Value value) {
    (open_.empty() ? result_ : open_.back().values.emplace_back()) = std::move(value);
    return Count();
  }

  Run& run_;
  std::vector<Level> open_;
  size_t num_read_ = 0;
  Value result_;
};

class JsonWriter {
 public:
  JsonWriter(Run& run, const JsonStyle& style) : run_(run), style_(style) {}

  void Write(const Value& value) {
    if (!HasRoom(0) || !run_.Spend()) return;
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        break;
      case Kind::kBool:
        out_ += value.Bool() ? "true" : "false";
        break;
      case Kind::kInt:
        out_ += fmt::format("{}", value.Int());
        break;
      case Kind::kFloat:
        out_ += NumberText(value.Float());
        break;
      case Kind::kString:
        WriteString(value.Text());
        break;
      case Kind::kList:
      case Kind::kTuple:
        WriteList(value.Elements());
        break;
      case Kind::kDict:
        WriteDict(value.AsDict());
        break;
      default:
        run_.Fail(fmt::format("Object of type {} is not JSON serializable", TypeName(value)));
    }
  }
  std::string Take() { return std::move(out_); }

 private:
  static std::string NumberText(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return FloatText(value);
  }

  void WriteString(std::string_view text) {
    if (!run_.SpendText(text.size())) return;
    out_ += '"';
    for (size_t pos = 0; pos < text.size();) WriteCharacter(ReadCodePoint(text, &pos));
    out_ += '"';
  }

  void WriteCharacter(char32_t c) {
    const auto code = static_cast<uint32_t>(c);
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += static_cast<char>(c);
    } else if (c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t') {
      out_ += '\\';
      out_ += c == '\b' ? 'b' : c == '\f' ? 'f' : c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
    } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7E && c < 0x10000)) {
      out_ += fmt::format("\\u{:04x}", code);
    } else if (style_.ensure_ascii && c > 0x7E) {
      const uint32_t pair = code - 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (pair >> 10), 0xDC00 + (pair & 0x3FF));
    } else {
      AppendUtf8(c, &out_);
    }
  }

  bool HasRoom(size_t more_bytes) {
    const size_t limit = run_.limits().max_output_bytes;
    if (out_.size() + more_bytes <= limit) return true;
    run_.Fail(fmt::format("a value has more than {} bytes as JSON", limit));
    return false;
  }

  void NewLine() {
    if (!style_.indent || !HasRoom(style_.indent->size() * static_cast<size_t>(level_))) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  // Between brackets, one line per item where there is an indent; nothing where there is no item.
  template <typename WriteItem>
  void WriteItems(char open, char close, size_t num_items, WriteItem&& write_item) {
    out_ += open;
    ++level_;
    for (size_t i = 0; i < num_items && !run_.failed(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine();
      write_item(i);
    }
    --level_;
    if (num_items > 0) NewLine();
    out_ += close;
  }

  void WriteList(const Values& values) {
    WriteItems('[', ']', values.size(), [&](size_t i) { Write(values[i]); });
  }

  void WriteDict(const Dict& dict) {
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::ranges::stable_sort(
          entries, [&](const auto* a, const auto* b) { return Less(run_, a->first, b->first); });
    }
    WriteItems('{', '}', entries.size(), [&](size_t i) {
      WriteKey(entries[i]->first);
      out_ += style_.key_separator;
      Write(entries[i]->second);
    });
  }

  void WriteKey(const Value& key) {
    if (key.IsString()) {
      WriteString(key.Text());
    } else if (key.IsNumber() || key.IsNone()) {
      out_ += '"';
      Write(key);
      out_ += '"';
    } else {
      run_.Fail(fmt::format("keys must be str, int, float, bool or None, not {}", TypeName(key)));
    }
  }

  Run& run_;
  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

Value FromJson(Run& run, const ordered_json& json) { return FromJson(run, json, 0); }

Value ParseJsonText(Run& run, std::string_view text) {
  if (!run.SpendText(text.size())) return None{};
  ValueBuilder builder(run);
  ordered_json::sax_parse(text, &builder);
  return run.failed() ? Value(None{}) : builder.Take();
}

std::string ToJson(Run& run, const Value& value, const JsonStyle& style) {
  JsonWriter writer(run, style);
  writer.Write(value);
  return writer.Take();
}

}  // namespace convene::jinja
