// Token ids as files: decimal text or .npy. Text for a tokenizer is not this.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace convene::cli {

// Non-negative integers separated by white space or commas; brackets around lists are ignored, so
// that what `tokenize` or Python prints can be read. Error: anything else, with its place.
Result<std::vector<int32_t>> ParseTokenText(std::string_view text);

// Either form, from the file `path` or, where it is "-", from standard input.
Result<std::vector<int32_t>> ReadTokenFile(const std::string& path);

}  // namespace convene::cli
