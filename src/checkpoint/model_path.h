// What people give as a model that is none: a name of the Hugging Face hub, a GGUF file, a
// directory that is not there. What a model directory holds is model_files.h.
#pragma once

#include <string>

#include "base/result.h"

namespace convene::checkpoint {

// Error: `path` cannot be a model; says what it is and what to do. A directory passes that holds a
// config.json or a tokenizer, whatever else it lacks; a file passes that may be a config.json.
Status CheckModelPath(const std::string& path);

}  // namespace convene::checkpoint
