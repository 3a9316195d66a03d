// Any bytes as a chat template: it must be refused, or render a conversation within its limits to
// valid text or an error, the same each time.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "text/chat_template.h"

namespace {

using convene::text::RenderOptions;
using nlohmann::ordered_json;

// Something of every kind of value for templates to take apart.
const ordered_json& Messages() {
  static const ordered_json messages = ordered_json::parse(R"([
    {"role": "system", "content": "Be <brief> & \"kind\".\n"},
    {"role": "user", "content": [{"type": "text", "text": "Größe? 東京 🎉"}, {"type": "image"}]},
    {"role": "assistant", "content": "", "reasoning": "Hm.", "tool_calls": [
      {"id": "abcdefghi", "function": {"name": "f", "arguments": {"a": [1, -2.5, null, true]}}}]},
    {"role": "tool", "tool_call_id": "abcdefghi", "content": "{\"k\": [1, 2]}"},
    {"role": "assistant", "content": "<think>x</think>y"}])");
  return messages;
}

// A conversation without any is refused before a template is rendered.
const ordered_json& OneMessage() {
  static const ordered_json messages = ordered_json::parse(R"([{"role": "user", "content": "a"}])");
  return messages;
}

RenderOptions MakeOptions() {
  RenderOptions options;
  options.add_generation_prompt = true;
  options.tools = ordered_json::parse(R"([{"type": "function", "function": {"name": "f",
    "parameters": {"type": "object", "properties": {"a": {"type": ["array", "null"]}}}}}])");
  options.variables =
      ordered_json::parse(R"({"x": 1, "y": "text", "z": [3, 1, 2], "d": {"k": "v"}})");
  options.now = std::chrono::system_clock::from_time_t(0);
  options.limits = {
      .max_steps = 50'000, .max_output_bytes = 1 << 20, .max_live_bytes = size_t{16} << 20};
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const RenderOptions all_options = MakeOptions();
  static const RenderOptions without_tools = [] {
    RenderOptions options = MakeOptions();
    options.tools = nullptr;
    return options;
  }();
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto chat_template = convene::text::ChatTemplate::Parse(source);
  if (!chat_template) return 0;
  // To convert what a template does not look at would take most of the time.
  const ordered_json& messages = source.find("messages") == source.npos ? OneMessage() : Messages();
  const RenderOptions& options = source.find("tools") == source.npos ? without_tools : all_options;
  const auto first = chat_template->Render(messages, options);
  if (first) {
    CHECK(convene::ValidUtf8Prefix(*first) == first->size());
    CHECK(first->size() <= options.limits.max_output_bytes);
  }
  // The same once more, of every fourth: it takes as long again.
  if (size % 4 != 0) return 0;
  const auto second = chat_template->Render(messages, options);
  CHECK(first.ok() == second.ok());
  if (first) CHECK(*first == *second);
  return 0;
}
