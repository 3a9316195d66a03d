// Any bytes as one line of a batch file: an error, or a request whose options are in range, and
// messages that a template can be given.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "base/check.h"
#include "openai/batch_line.h"
#include "openai/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto custom_id = convene::openai::CustomIdOf(text);
  const auto line = convene::openai::ParseBatchLine(text, {});
  if (!line) return 0;
  CHECK(custom_id && *custom_id == line->custom_id && !custom_id->empty());
  CHECK(!line->body.request.max_tokens || *line->body.request.max_tokens > 0);
  CHECK(convene::engine::Validate(line->body.request.sampling).ok());
  CHECK(line->body.request.num_logprobs.value_or(0) >= 0 &&
        line->body.request.num_logprobs.value_or(0) <= 20);
  CHECK(line->body.is_chat == line->body.messages.is_array());
  CHECK(line->body.num_answers == 1 && !line->body.streams);
  CHECK(line->body.prompts.size() == (line->body.is_chat ? 0 : 1));
  for (const auto& prompt : line->body.prompts) {
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    if (ids == nullptr) continue;
    CHECK(!ids->empty());
    for (const int32_t id : *ids) CHECK(id >= 0, "{}", id);
  }
  if (!line->body.is_chat) return 0;
  static const auto chat_template = convene::text::ChatTemplate::Parse(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
      "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}");
  CHECK(chat_template.ok());
  const auto rendered = convene::openai::RenderMessages(*chat_template, line->body.messages, {});
  CHECK(rendered || !rendered.error().message.empty());
  return 0;
}
