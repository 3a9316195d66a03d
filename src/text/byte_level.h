// The spelling of bytes as printable characters that byte-level vocabularies use (GPT-2's). Not
// UTF-8 itself, and not the <0x00> tokens of byte fallback.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace convene::text {

// Appends one character, of one or two bytes, for each byte of `bytes`.
void AppendByteLevel(std::string_view bytes, std::string* spelled);

// The bytes that `spelled` (valid UTF-8) stands for, or nothing if one of its characters stands for
// none.
std::optional<std::string> BytesOfByteLevel(std::string_view spelled);

}  // namespace convene::text
