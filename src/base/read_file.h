// Reads a whole small file (configurations, prompts) into memory. Not for weights, which are mapped
// (checkpoint/mapped_file.h).
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace convene {

// The bytes of the file at `path`. Errors: it cannot be opened or read, is a directory, or holds
// more than `max_bytes`; the message names the file.
Result<std::string> ReadFile(const std::string& path, uint64_t max_bytes);

}  // namespace convene
