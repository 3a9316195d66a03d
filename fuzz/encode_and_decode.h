// What any tokenizer must do with any text, whoever wrote them: for the targets that read
// tokenizers.
#pragma once

#include <string_view>

#include "text/tokenizer.h"

// Encodes `text`, which may be refused, and CHECKs that its tokens decode, in a stream as well as
// at once, and that nothing but UTF-8 comes out.
void EncodeAndDecode(const convene::text::Tokenizer& tokenizer, std::string_view text);
