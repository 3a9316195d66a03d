// Reads text that gzip has packed. Knows nothing of files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace convene::cli {

// Whether `bytes` begin as gzip begins them.
bool IsGzip(std::string_view bytes);

// What gzip has packed into `bytes`. Errors: they are damaged or end too early, or hold more than
// `max_bytes`.
Result<std::string> Inflate(std::string_view bytes, uint64_t max_bytes);

}  // namespace convene::cli
