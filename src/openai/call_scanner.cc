#include "openai/call_scanner.h"

#include <utility>

#include "base/json.h"

namespace convene::openai {
namespace {

bool IsSpace(char byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }

// The string that JSON text stands for; nothing where it is no string.
std::optional<std::string> StringOf(const std::string& json) {
  const Result<nlohmann::json> parsed = ParseJson(json);
  if (!parsed || !parsed->is_string()) return std::nullopt;
  return parsed->get<std::string>();
}

}  // namespace

CallScanner::State CallScanner::Push(char byte) {
  raw_ += byte;
  if (expected_ == Expected::kInValue) return PushInValue(byte);
  if (IsSpace(byte)) return State::kMore;
  switch (expected_) {
    case Expected::kObject:
      expected_ = Expected::kKey;
      return byte == '{' ? State::kMore : State::kFailed;
    case Expected::kKey:
      if (byte == '}' && key_.empty()) return EndObject();
      if (byte != '"') return State::kFailed;
      is_key_ = true;
      break;
    case Expected::kColon:
      expected_ = Expected::kValue;
      return byte == ':' ? State::kMore : State::kFailed;
    case Expected::kComma:
      expected_ = Expected::kKey;
      if (byte == '}') return EndObject();
      return byte == ',' ? State::kMore : State::kFailed;
    case Expected::kValue:
    case Expected::kInValue:
      is_key_ = false;
      break;
  }
  expected_ = Expected::kInValue;
  value_.clear();
  depth_ = 0;
  passes_on_ =
      !is_key_ && !has_arguments_ && byte == '{' && (key_ == "arguments" || key_ == "parameters");
  return PushInValue(byte);
}

CallScanner::State CallScanner::PushInValue(char byte) {
  const bool is_scalar = depth_ == 0 && !is_in_string_;
  if (is_scalar && !value_.empty() && (byte == ',' || byte == '}')) {  // of a number or a word
    if (EndValue() == State::kFailed) return State::kFailed;
    expected_ = Expected::kKey;
    return byte == '}' ? EndObject() : State::kMore;
  }
  (passes_on_ ? arguments_ : value_) += byte;
  if (is_in_string_) {
    if (is_escaped_ || byte != '"') {
      is_escaped_ = !is_escaped_ && byte == '\\';
      return State::kMore;
    }
    is_in_string_ = false;
    return depth_ == 0 ? EndValue() : State::kMore;
  }
  if (byte == '"') {
    is_in_string_ = true;
  } else if (byte == '{' || byte == '[') {
    ++depth_;
  } else if (byte == '}' || byte == ']') {
    if (--depth_ < 0) return State::kFailed;
    if (depth_ == 0) return EndValue();
  }
  return State::kMore;
}

CallScanner::State CallScanner::EndValue() {
  expected_ = Expected::kComma;
  if (is_key_) {
    std::optional<std::string> key = StringOf(value_);
    if (!key || key->empty()) return State::kFailed;
    key_ = *std::move(key);
    expected_ = Expected::kColon;
    return State::kMore;
  }
  if (key_ == "name" && !name_) {
    std::optional<std::string> name = StringOf(value_);
    if (!name || name->empty()) return State::kFailed;
    name_ = std::move(name);
  } else if (passes_on_) {
    has_arguments_ = true;
    passes_on_ = false;
  } else if ((key_ == "arguments" || key_ == "parameters") && !has_arguments_) {
    // Some models write the text of the object.
    std::optional<std::string> text = StringOf(value_);
    arguments_ += text ? *text : value_;
    has_arguments_ = true;
  }
  return State::kMore;
}

CallScanner::State CallScanner::EndObject() {
  if (!name_) return State::kFailed;
  if (!has_arguments_) arguments_ = "{}";
  return State::kWhole;
}

std::string CallScanner::TakeArguments() { return std::exchange(arguments_, {}); }

}  // namespace convene::openai
