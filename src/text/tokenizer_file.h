// Reads the files of a tokenizer from a checkpoint directory. What is in them is the business of
// tokenizer_json.h and vocabulary_files.h.
#pragma once

#include <string>

#include "base/result.h"

namespace convene::text {

// The contents. Errors: the file cannot be read or is larger than 512 MiB.
Result<std::string> ReadTokenizerFile(const std::string& path);

}  // namespace convene::text
