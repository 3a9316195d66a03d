// One line of an OpenAI batch file as a request. It reads untrusted bytes; its body is
// generation_body.h. Format: https://platform.openai.com/docs/guides/batch
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "openai/generation_body.h"

namespace convene::openai {

struct BatchLine {
  std::string custom_id;
  GenerationBody body;
};

// A line without seed gets SeedOf its custom_id. Errors: not JSON, a field that is missing, of the
// wrong type or out of range, one that convene does not support (n above 1, streaming, ...), by its
// name.
Result<BatchLine> ParseBatchLine(std::string_view line, const engine::SamplingOptions& defaults);

// A seed of the line's own, so that equal prompts are answered differently where tokens are
// sampled, and a rerun answers as before: the FNV-1a hash (64 bit) of the bytes of custom_id.
uint64_t SeedOf(std::string_view custom_id);

// The custom_id of a line, as far as it can be read: for error results and for resuming.
std::optional<std::string> CustomIdOf(std::string_view line);

}  // namespace convene::openai
