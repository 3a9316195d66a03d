// Where characters end as readers see them: a letter with its accents, a flag, a family of emoji.
// By the rules and the Unicode version of the Hugging Face tokenizers package.
#pragma once

#include <cstddef>
#include <string_view>

namespace convene::text {

// The end of the grapheme cluster that begins at `begin`. Preconditions: valid UTF-8, begin <
// text.size(), and a cluster begins there.
size_t GraphemeEnd(std::string_view text, size_t begin);

}  // namespace convene::text
