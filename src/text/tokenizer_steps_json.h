// Reads normalizers, pre-tokenizers and decoders from tokenizer.json. The model and the tokens are
// tokenizer_json.h.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace convene::text {

// How GPT-2 and its successors with "ByteLevel" and no pattern of their own cut text.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Each takes the value of its field; null is one without steps. Errors: a type that convene does
// not know, by name, or malformed fields.
Result<Normalizer> ReadNormalizer(const nlohmann::json& value);
Result<PreTokenizer> ReadPreTokenizer(const nlohmann::json& value);
Result<Decoder> ReadDecoder(const nlohmann::json& value);

}  // namespace convene::text
