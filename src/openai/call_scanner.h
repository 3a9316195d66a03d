// Reads one call of a tool, {"name": "f", "arguments": {...}}, byte by byte as a model writes it,
// so that its arguments can be passed on before it is whole. It does not check the arguments: they
// are the client's to parse.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace convene::openai {

class CallScanner {
 public:
  enum class State : uint8_t { kMore, kWhole, kFailed };

  // The next byte. Nothing may be pushed after kWhole or kFailed. Fails at what cannot be the JSON
  // of a call, and at the end of one without name.
  State Push(char byte);

  // Once it is known; not empty.
  const std::optional<std::string>& name() const { return name_; }
  // What has come of the arguments since the last call.
  std::string TakeArguments();
  // All bytes so far.
  const std::string& raw() const { return raw_; }

 private:
  enum class Expected : uint8_t { kObject, kKey, kColon, kValue, kInValue, kComma };

  State PushInValue(char byte);
  State EndValue();
  State EndObject();

  Expected expected_ = Expected::kObject;
  std::string raw_;
  std::string key_;
  std::string value_;  // of the key, unless it is passed on
  std::string arguments_;
  std::optional<std::string> name_;
  int depth_ = 0;  // of brackets within the value or key
  bool is_in_string_ = false;
  bool is_escaped_ = false;
  bool is_key_ = false;
  bool passes_on_ = false;  // the value is the object of the arguments
  bool has_arguments_ = false;
};

}  // namespace convene::openai
