// From tokens back to text, token by token: what comes out in pieces is exactly what all tokens
// give at once. Which tokens are left out is the caller's choice (tokenizer.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/normalizer.h"

namespace convene::text {

// The steps are those of the Hugging Face tokenizers package, by its names. A step maps a list of
// tokens to another; the text is all that remain, put together.

struct DecodeByteLevel {};     // joins all tokens, bytes that are no UTF-8 become U+FFFD
struct DecodeByteFallback {};  // <0x41> is a byte; a run of such tokens is UTF-8 or all U+FFFD
struct Fuse {                  // joins all tokens
  std::string separator;
};
struct StripToken {  // removes up to `start` and `stop` times `content` at the ends of each token
  std::string content;  // one character
  uint64_t start;
  uint64_t stop;
};
struct DecodeMetaspace {  // `replacement` is a space, but in the first token nothing
  std::string replacement;
  bool drops_in_first;
};

using DecoderStep =
    std::variant<DecodeByteLevel, DecodeByteFallback, Fuse, StripToken, DecodeMetaspace, Replace>;

// The steps of one tokenizer, in order. Without any, tokens are joined by spaces.
class Decoder {
 public:
  Decoder() : Decoder({Fuse{.separator = " "}}) {}
  explicit Decoder(std::vector<DecoderStep> steps) : steps_(std::move(steps)) {}

  const std::vector<DecoderStep>& steps() const { return steps_; }

  // The bytes that a token in the middle of a text stands for. Errors: as DecoderState::Push.
  Result<std::string> BytesOf(std::string_view token) const;

 private:
  std::vector<DecoderStep> steps_;
};

// One text in the making. Holds a view of the decoder, which must outlive it.
class DecoderState {
 public:
  explicit DecoderState(const Decoder& decoder);

  // Appends the text that is certain now that `token` (UTF-8, as the vocabulary spells it) has
  // come: whole characters. Behind a step that sees the fused text through a regular expression
  // nothing is certain before Finish. Errors: a regular expression gives up, replacements grow too
  // much.
  Status Push(std::string_view token, std::string* text);

  // Appends what was held back. Nothing may be pushed afterwards. Errors: as Push.
  Status Finish(std::string* text);

 private:
  // A token, or a part of one that is still growing.
  struct Fragment {
    std::string text;
    bool ends_token;
  };
  using Fragments = std::vector<Fragment>;

  // What a step remembers of the tokens so far. Each uses what it needs.
  struct StepState {
    std::string token;            // the part of a token that has come
    std::string held;             // what may yet become something else
    int64_t num_tokens = 0;       // that have ended
    bool is_in_token = false;     // a part of a token has come, not its end
    uint64_t num_stripped = 0;    // at the beginning of this token
    size_t num_pushed_bytes = 0;  // into the decoder
  };

  Status Run(Fragments fragments, bool is_end, std::string* text);
  // Each takes the step's input and returns its output; with `is_end` no more will come.
  static Result<Fragments> Apply(const DecodeByteLevel& step, const Fragments& input, bool is_end,
                                 StepState* state);
  static Result<Fragments> Apply(const DecodeByteFallback& step, const Fragments& input,
                                 bool is_end, StepState* state);
  static Result<Fragments> Apply(const Fuse& step, const Fragments& input, bool is_end,
                                 StepState* state);
  static Result<Fragments> Apply(const StripToken& step, Fragments input, bool is_end,
                                 StepState* state);
  static Result<Fragments> Apply(const DecodeMetaspace& step, Fragments input, bool is_end,
                                 StepState* state);
  static Result<Fragments> Apply(const Replace& step, Fragments input, bool is_end,
                                 StepState* state);
  static std::vector<std::string> TakeWholeTokens(const Fragments& input, StepState* state);

  const Decoder* decoder_;
  std::vector<StepState> states_;  // one per step
};

}  // namespace convene::text
