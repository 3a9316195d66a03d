#include "engine/active_request.h"

#include <algorithm>
#include <utility>

namespace convene::engine {

ActiveRequest::ActiveRequest(RequestId id, Request request, int max_length,
                             const text::Tokenizer* tokenizer, std::optional<int32_t> start_token)
    : request_(std::move(request)),
      max_length_(max_length),
      tokenizer_(tokenizer),
      sampler_(request_.sampling),
      stop_strings_(std::move(request_.stop)) {
  sequence_.id = id;
  sequence_.priority = request_.priority;
  if (start_token) {
    sequence_.input = std::move(request_.prompt);
    sequence_.tokens = {*start_token};
  } else {
    sequence_.tokens = std::move(request_.prompt);
  }
  sequence_.prompt_length = sequence_.length();
  if (request_.padded_length > sequence_.length()) {
    sequence_.padded = sequence_.tokens;
    sequence_.padded.pop_back();
    constexpr int32_t kPadding = 0;  // any token of the vocabulary
    sequence_.padded.resize(static_cast<size_t>(request_.padded_length) - 1, kPadding);
  }
  for (const int32_t token : sequence_.tokens) sampler_.Observe(token);
  if (request_.form) matcher_.emplace(request_.form);
  if (tokenizer_ == nullptr) return;
  decoder_.emplace(*tokenizer_, /*skip_special_tokens=*/true, request_.shown_tokens);
  if (!request_.continues_prompt || start_token) return;
  for (const int32_t token : sequence_.tokens) TextOf(token);
}

Update ActiveRequest::MakeUpdate() const {
  Update update;
  update.request = sequence_.id;
  update.num_reused_tokens = std::min(sequence_.num_reused.value_or(0), sequence_.prompt_length);
  if (start_) update.start = *start_;
  return update;
}

std::optional<Update> ActiveRequest::Progress() const {
  const bool is_prompt = sequence_.length() == sequence_.prompt_length;
  if (!request_.reports_progress || !is_prompt || sequence_.num_pending() == 0) return std::nullopt;
  Update update = MakeUpdate();
  update.progress = {.num_computed = sequence_.num_computed, .num_tokens = sequence_.length()};
  return update;
}

GeneratedToken ActiveRequest::Sample(std::span<const float> logits, SamplerBuffers& buffers) {
  GeneratedToken generated;
  std::span<const uint64_t> allowed;
  if (matcher_) allowed = matcher_->Allowed();
  generated.token =
      sampler_.Sample(logits, sequence_.length() - sequence_.prompt_length, buffers, allowed);
  if (request_.num_logprobs) {
    generated.logprob = logits[static_cast<size_t>(generated.token)] - LogSumExp(logits);
    generated.top = TopLogprobs(logits, *request_.num_logprobs);
  }
  return generated;
}

Update ActiveRequest::Append(GeneratedToken token, bool is_eos) {
  sequence_.tokens.push_back(token.token);
  sampler_.ObserveAnswer(token.token);
  if (matcher_ && !is_eos) matcher_->Advance(token.token);
  Update update = MakeUpdate();
  update.token = std::move(token);
  if (is_eos && !request_.ignore_eos) {
    update.finish = FinishReason::kStop;
    update.is_end_of_text = true;
  } else {
    update.text = stop_strings_.Push(TextOf(update.token.token));
    if (stop_strings_.stopped() || (matcher_ && matcher_->IsComplete())) {
      update.finish = FinishReason::kStop;
    } else if (sequence_.length() >= max_length_) {
      update.finish = FinishReason::kLength;
    }
  }
  if (update.finish) {
    update.text += RemainingText();
  } else if (!CanGoOn()) {
    update.error = NoTokenLeadsOn();
  }
  return update;
}

Error NoTokenLeadsOn() {
  return Error{
      "no token of the model's vocabulary leads on in the form that the answer is to have; ask for "
      "another one, or for none"};
}

// A model's vocabulary may be padded beyond the tokenizer's: such a token has no text.
std::string ActiveRequest::TextOf(int32_t token) {
  if (!decoder_) return {};
  Result<std::string> text = decoder_->Push(token);
  return text ? *std::move(text) : std::string();
}

std::string ActiveRequest::RemainingText() {
  if (!decoder_) return {};
  const Result<std::string> rest = decoder_->Finish();
  std::string text = rest ? stop_strings_.Push(*rest) : std::string();
  text += stop_strings_.Finish();
  return text;
}

}  // namespace convene::engine
