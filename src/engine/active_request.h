// A request while it is answered: its sequence, its sampler, its text so far. When it runs is the
// scheduler's matter.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/stop_strings.h"
#include "grammar/token_matcher.h"
#include "text/tokenizer.h"

namespace convene::engine {

class ActiveRequest {
 public:
  // `request` must be valid and end within `max_length` tokens, prompt and answer together. Without
  // `tokenizer`, which must outlive this, there is no text. With `start_token` the prompt is the
  // input of an encoder, and the answer begins with that token, which is no part of it.
  ActiveRequest(RequestId id, Request request, int max_length, const text::Tokenizer* tokenizer,
                std::optional<int32_t> start_token);
  ActiveRequest(const ActiveRequest&) = delete;
  ActiveRequest& operator=(const ActiveRequest&) = delete;

  Sequence& sequence() { return sequence_; }

  // False: no token of the vocabulary leads on in the form that the answer is to have.
  bool CanGoOn() { return !matcher_ || matcher_->AllowsAny(); }

  // Whether Sample takes far longer than reading the logits once.
  bool samples_slowly() const {
    return request_.sampling.temperature > 0 || request_.num_logprobs.has_value();
  }
  // Whether Sample may run beside that of other requests: forms are shared by the answers to one
  // prompt.
  bool samples_alone() const { return !matcher_; }

  // Whether Sample looks at nothing but the largest logit.
  bool TakesLargest() const {
    return !matcher_ && !request_.num_logprobs && sampler_.TakesLargest();
  }

  // Whether the next token is its last one, whatever it is.
  bool EndsWithNext() const { return sequence_.length() + 1 >= max_length_; }

  // It takes part in a step that begins now.
  void BeginStep(std::chrono::steady_clock::time_point now) {
    if (!start_) start_ = now;
  }

  // Nothing: it was not asked for, or the prompt was computed before.
  std::optional<Update> Progress() const;

  // Picks the next token from its logits (vocab).
  GeneratedToken Sample(std::span<const float> logits, SamplerBuffers& buffers);

  // Appends that token to the sequence. `is_eos`: it ends a text. An end-of-text token that ends
  // this answer, and all that is not text, add no text. The answer ends, too, when its form is
  // whole, and with an error where it cannot go on.
  Update Append(GeneratedToken token, bool is_eos);

 private:
  // Of its sequence, with what is the same in all.
  Update MakeUpdate() const;
  std::string TextOf(int32_t token);
  std::string RemainingText();

  Request request_;
  int max_length_;
  const text::Tokenizer* tokenizer_;
  Sequence sequence_;
  std::optional<std::chrono::steady_clock::time_point> start_;  // of its first step
  Sampler sampler_;
  std::optional<text::StreamDecoder> decoder_;
  StopStrings stop_strings_;
  std::optional<grammar::TokenMatcher> matcher_;  // of the form that the answer has
};

// Of a request with a form that its answer cannot have.
Error NoTokenLeadsOn();

}  // namespace convene::engine
