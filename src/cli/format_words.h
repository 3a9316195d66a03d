// Formats in one word, as `compare` takes a list of them: WEIGHTS[:GROUP][:act=FORMAT][:kv=FORMAT].
// What each means is runtime/formats.h.
#pragma once

#include <string_view>

#include "base/result.h"
#include "engine/choose_formats.h"

namespace convene::cli {

// "int8", "int4:64", "int4:128:act=bf16:kv=int8". Never `auto`. Errors: a part that is unknown, or
// known twice; formats that do not go together.
Result<engine::FormatWishes> ParseFormatWord(std::string_view word);

}  // namespace convene::cli
