// Reads a whole small file (configurations, prompts) into memory. Not for weights, which are mapped
// (checkpoint/mapped_file.h).
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace convene {

// The bytes of the file at `path`. Never waits: what is no regular file (a FIFO, a device, a
// directory) is refused. Errors: it cannot be opened or read, or holds more than `max_bytes`; the
// message names the file.
Result<std::string> ReadFile(const std::string& path, uint64_t max_bytes);

// The same of what people name on a command line, which may also be a stream: a terminal, a pipe as
// in `--input <(zcat requests.gz)`, a FIFO. Waits for a stream's writer as long as it is there, and
// 5 s for a first one.
Result<std::string> ReadFileOrStream(const std::string& path, uint64_t max_bytes);

}  // namespace convene
