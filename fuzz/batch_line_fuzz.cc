// Any bytes as one line of a batch file: an error, or a request whose options are in range.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "engine/batch_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto custom_id = convene::engine::CustomIdOf(text);
  const auto line = convene::engine::ParseBatchLine(text, {});
  if (!line) return 0;
  CHECK(custom_id && *custom_id == line->custom_id && !custom_id->empty());
  CHECK(!line->request.max_tokens || *line->request.max_tokens > 0);
  CHECK(convene::engine::Validate(line->request.sampling).ok());
  CHECK(line->is_chat == line->messages.is_array());
  return 0;
}
