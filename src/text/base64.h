// Base64 with padding (RFC 4648, section 4), as binary data stand in JSON files. Not the alphabet
// for file names.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace convene::text {

// None if `text` is not what an encoder writes.
std::optional<std::string> DecodeBase64(std::string_view text);

}  // namespace convene::text
