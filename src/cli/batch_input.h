// The input of `convene batch` as lines: which of them earlier runs have answered, and which are to
// be done now. What a line asks for is openai/batch_line.h.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "openai/batch_results.h"

namespace convene::cli {

struct InputLine {
  int64_t number = 0;  // from 1
  std::string_view text;
};

struct BatchInput {
  std::vector<InputLine> pending;
  // With a custom_id that a line before has. They are refused after all others, so that their
  // results cannot be taken for those of the first.
  std::vector<InputLine> duplicates;
  int64_t num_skipped = 0;  // that were answered
};

// `finished`: custom_ids of results. The lines point to `text`; blank ones are none.
BatchInput ReadBatchInput(std::string_view text, const std::multiset<std::string>& finished);

// The old refusals of what is tried now give way to the new results. Error: BatchResults::Forget's.
Status ForgetRetried(const BatchInput& input, openai::BatchResults& results);

}  // namespace convene::cli
