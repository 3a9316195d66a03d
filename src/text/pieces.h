// A text on its way to tokens: normalized, cut into pieces, some of which are tokens already. Only
// the data; added_tokens.h and pre_tokenizer.h cut.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace convene::text {

inline constexpr int32_t kNoToken = -1;

struct Piece {
  size_t begin;  // bytes in Pieces::text
  size_t end;
  int32_t token = kNoToken;  // the token that the piece is, if one was found in the text itself
};

// The pieces lie in `text` in order, without overlap, possibly with gaps; none without a token is
// empty.
struct Pieces {
  std::string text;
  std::vector<Piece> pieces;
  // So many bytes at the beginning of `text` come from the original text's first byte, or were put
  // before it: "the first word" for prepend_scheme "first".
  size_t num_origin_bytes = 0;
};

}  // namespace convene::text
