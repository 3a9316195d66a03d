// What is asked of the engine for one prompt, and what comes back while it answers. No JSON.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/sampler.h"

namespace convene::grammar {
class TokenMasks;
}

namespace convene::engine {

using RequestId = uint64_t;

struct Request {
  std::vector<int32_t> prompt = {};    // token ids, at least one; the input of an encoder-decoder
  std::optional<int> max_tokens = {};  // unset: as many as the context holds
  // To compare with engines that pad prompts: as many tokens are computed for the prompt, and have
  // room in the KV cache, as if it had so many. They come behind it, so that the answer does not
  // know. Generated tokens do not attend over them, which such an engine masks. Of a decoder; at
  // most the prompt's length: it is not padded.
  int padded_length = 0;
  SamplingOptions sampling = {};
  int64_t priority = 0;  // lower ones first, also to KV blocks that others have already
  std::vector<std::string> stop = {};    // strings that end the answer and are not part of it
  bool reports_progress = false;         // Update::progress
  bool ignore_eos = false;               // go on after the model's end-of-text tokens
  std::optional<int> num_logprobs = {};  // per token: its own, and this many of the likeliest
  // The answer continues the prompt's text, so that a leading space, say, is kept. Otherwise it is
  // a text of its own.
  bool continues_prompt = false;
  // Special tokens whose spelling is part of the answer's text; others add none to it.
  std::vector<int32_t> shown_tokens = {};
  // The form that the answer has: it goes on with tokens that keep to it alone, and ends when it is
  // whole. Null: any. Requests may share it; from Submit on it is the engine's thread's.
  std::shared_ptr<grammar::TokenMasks> form = nullptr;
};

enum class FinishReason {
  kStop,    // an end-of-text token or a stop string
  kLength,  // max_tokens, or the context is full
};

struct GeneratedToken {
  int32_t token = 0;
  double logprob = 0;                  // set if asked for
  std::vector<TokenLogprob> top = {};  // likeliest first
};

// Of a prompt that is being computed, in tokens.
struct PromptProgress {
  int num_computed = 0;  // those that were found in the KV cache too
  int num_tokens = 0;
};

// What one step did for one request.
struct Update {
  RequestId request = 0;
  // Where it was asked for: the step computed a part of the prompt, and not its end. There is no
  // token yet.
  std::optional<PromptProgress> progress;
  GeneratedToken token;  // the end-of-text token too
  std::string text;      // that may be shown now; whole UTF-8 characters
  std::optional<FinishReason> finish;
  bool is_end_of_text = false;  // the token ended the answer, and is no part of it
  int num_reused_tokens = 0;    // of the prompt: found in the KV cache when the request began
  std::chrono::steady_clock::time_point start = {};  // of the first step that it took part in
  // The request has failed: there is no token, and nothing more will come of it.
  std::optional<Error> error;
};

}  // namespace convene::engine
