#include "text/jinja/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja/compare.h"
#include "text/jinja/python_text.h"
#include "text/jinja/repr.h"
#include "text/utf8.h"

namespace convene::text::jinja {
namespace {

using nlohmann::ordered_json;

Value FromJson(Run& run, const ordered_json& json, int depth) {
  if (depth > kMaxValueDepth) {
    return run.Fail(fmt::format("the conversation is nested deeper than {}", kMaxValueDepth));
  }
  if (!run.Spend()) return None{};
  switch (json.type()) {
    case ordered_json::value_t::boolean:
      return json.get<bool>();
    case ordered_json::value_t::number_integer:
      return json.get<int64_t>();
    case ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
        return run.Fail(fmt::format("the conversation has the integer {}, the limit is {}",
                                    json.get<uint64_t>(), std::numeric_limits<int64_t>::max()));
      }
      return json.get<int64_t>();
    case ordered_json::value_t::number_float:
      return json.get<double>();
    case ordered_json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (ValidUtf8Prefix(text) != text.size())
        return run.Fail("the conversation has text that is not valid UTF-8");
      return run.String(text);
    }
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
        if (ValidUtf8Prefix(key) != key.size()) {
          return run.Fail("the conversation has a key that is not valid UTF-8");
        }
        entries.emplace_back(run.String(key), FromJson(run, value, depth + 1));
      }
      return run.NewDict(std::move(entries));
    }
    default:
      return None{};
  }
}

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
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        return Less(run_, a->first, b->first);
      });
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

std::string ToJson(Run& run, const Value& value, const JsonStyle& style) {
  JsonWriter writer(run, style);
  writer.Write(value);
  return writer.Take();
}

}  // namespace convene::text::jinja
