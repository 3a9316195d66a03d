#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/units.h"
#include "engine/check_tokens.h"
#include "engine/encode_inputs.h"
#include "engine/request_batches.h"

namespace convene::engine {
namespace {

constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 4096;
constexpr int kMaxLogprobs = 100;

std::vector<BlockManager> BlocksOf(const LoadedModel& model) {
  std::vector<BlockManager> blocks;
  for (int group = 0; group < model.num_groups(); ++group) {
    blocks.emplace_back(model.num_kv_blocks());
  }
  return blocks;
}

}  // namespace

Engine::Engine(std::unique_ptr<LoadedModel> model, std::optional<text::Tokenizer> tokenizer,
               int max_sequences)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      is_eos_(static_cast<size_t>(model_->spec().vocab_size)),
      blocks_(BlocksOf(*model_)),
      scheduler_(blocks_,
                 {.max_step_tokens = model_->max_step_tokens(), .max_sequences = max_sequences}) {
  std::vector<int> eos = model_->generation_config().eos_token_ids;
  if (eos.empty() && tokenizer_ && tokenizer_->named_tokens().eos) {
    eos.push_back(tokenizer_->named_tokens().eos->id.value_or(model_->spec().vocab_size));
  }
  if (model_->plan().changes_layout()) {
    phase_order_.emplace(model_->plan().phase_change, Arrivals::kStream);
  }
  for (const int token : eos) {
    if (token >= model_->spec().vocab_size) continue;
    is_eos_[static_cast<size_t>(token)] = true;
    end_tokens_.push_back(token);
  }
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved, deep inside try_emplace.
Result<RequestId> Engine::Submit(Request request) {
  if (const Status valid = Check(request); !valid) return valid.error();
  const bool has_encoder = model_->spec().has_encoder();
  std::optional<int32_t> start_token;
  if (has_encoder) start_token = model_->spec().decoder_start_token;
  const int prompt_length = has_encoder ? 1 : static_cast<int>(request.prompt.size());
  const int room = model_->context() - std::max(prompt_length, request.padded_length);
  const int max_length = prompt_length + std::min(request.max_tokens.value_or(room), room);

  const RequestId id = ++last_id_;
  ActiveRequest& active = requests_
                              .try_emplace(id, id, std::move(request), max_length,
                                           tokenizer_ ? &*tokenizer_ : nullptr, start_token)
                              .first->second;
  if (!active.CanGoOn()) {
    requests_.erase(id);
    return NoTokenLeadsOn();
  }
  active.sequence().sharing_limit = model_->transformer().SharingLimit(prompt_length);
  scheduler_.Add(&active.sequence());
  return id;
}

Status Engine::Check(const Request& request) const {
  if (request.prompt.empty()) return Error{"the prompt has no tokens"};
  if (const Status known = CheckTokens(request.prompt, model_->spec().vocab_size); !known) {
    return known;
  }
  if (model_->spec().has_encoder()) {
    const Status fits = CheckInput(*model_, request.prompt);
    if (!fits) return fits;
  } else if (std::ssize(request.prompt) >= model_->context()) {
    return Error{fmt::format(
        "the prompt has {} tokens; the context of {} must hold it and at least one more: shorten "
        "the prompt, or raise --context (the model's limit is {})",
        FormatCount(request.prompt.size()), model_->context(), model_->spec().max_positions)};
  }
  if (request.padded_length > 0 && model_->spec().has_encoder()) {
    return Error{"the input of an encoder is not padded: leave --padded out"};
  }
  const int of_answer = std::max(1, request.max_tokens.value_or(1));
  if (request.padded_length > 0 && request.padded_length + of_answer > model_->context()) {
    return Error{
        fmt::format("a prompt that is padded to {} tokens and an answer of {} do not fit the "
                    "context of {}: raise --context, or leave --padded out",
                    FormatCount(static_cast<uint64_t>(request.padded_length)),
                    FormatCount(static_cast<uint64_t>(of_answer)), model_->context())};
  }
  if (!request.stop.empty() && !tokenizer_) return Error{"stop strings need a tokenizer"};
  for (const TokenBias& bias : request.sampling.logit_bias) {
    if (bias.token >= 0 && bias.token < model_->spec().vocab_size) continue;
    return Error{fmt::format("logit_bias names token {}; the vocabulary ends at {}", bias.token,
                             model_->spec().vocab_size - 1)};
  }
  return CheckRequestOptions(request);
}

bool Engine::HasRoomFor(const Request& request) const {
  if (model_->spec().has_encoder()) {
    const int32_t start_token = model_->spec().decoder_start_token;
    return scheduler_.HasRoomFor({&start_token, 1}, static_cast<int>(request.prompt.size()),
                                 request.priority);
  }
  return scheduler_.HasRoomFor(request.prompt, 0, request.priority);
}

int Engine::num_kv_blocks() const {
  int count = 0;
  for (const BlockManager& group : blocks_) count += group.num_blocks();
  return count;
}

int Engine::num_held_kv_blocks() const {
  int count = 0;
  for (const BlockManager& group : blocks_) count += group.num_blocks() - group.num_available();
  return count;
}

void Engine::Cancel(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  scheduler_.Remove(&found->second.sequence());
  requests_.erase(found);
}

void Engine::Expect(Arrivals arrivals) {
  if (phase_order_) phase_order_.emplace(model_->plan().phase_change, arrivals);
}

bool Engine::AnyGoesOn() const {
  return std::ranges::any_of(requests_,
                             [](const auto& each) { return !each.second.EndsWithNext(); });
}

std::vector<Update> Engine::Step() {
  std::vector<ScheduledTokens> scheduled;
  std::optional<strategy::Phase> phase;
  bool decode_follows = false;
  if (phase_order_) {
    PhaseOrder::Step next = phase_order_->Next(scheduler_);
    scheduled = std::move(next.tokens);
    phase = next.phase;
    decode_follows = next.decode_follows && AnyGoesOn();
  } else {
    scheduled = scheduler_.Schedule();
  }
  if (scheduled.empty()) return {};
  BalanceMicroBatches(model_->num_micro_batches(), &scheduled);
  std::vector<Update> updates = Execute(scheduled, phase, decode_follows);
  for (const Update& update : updates) {
    if (update.finish || update.error) Cancel(update.request);
  }
  return updates;
}

namespace {

// Nothing of the step is completed, so that nobody finds what it wrote in the cache.
std::vector<Update> FailAll(const std::vector<ScheduledTokens>& scheduled, const Error& error) {
  std::vector<Update> updates;
  for (const ScheduledTokens& tokens : scheduled) {
    Update& failed = updates.emplace_back();
    failed.request = tokens.sequence->id;
    failed.error = error;
  }
  return updates;
}

}  // namespace

std::vector<Update> Engine::Execute(const std::vector<ScheduledTokens>& scheduled,
                                    std::optional<strategy::Phase> phase, bool decode_follows) {
  std::vector<device::SequenceStep> step;
  std::vector<device::EncoderInput> inputs;
  const auto now = std::chrono::steady_clock::now();
  for (const ScheduledTokens& each : scheduled) {
    const auto& [sequence, num_tokens] = each;
    requests_.at(sequence->id).BeginStep(now);
    if (!sequence->input.empty() && !sequence->is_encoded) {
      inputs.push_back({sequence->input, sequence->input_blocks, sequence->group});
    }
    step.push_back({
        .tokens = sequence->pending().first(static_cast<size_t>(num_tokens)),
        .first_position = sequence->next_position(),
        .blocks = sequence->blocks,
        .prompt_length = sequence->prompt_length,
        .first_logits_token = each.reach_end() ? num_tokens - 1 : num_tokens,
        .largest_suffices = requests_.at(sequence->id).TakesLargest(),
        .encoder_blocks = sequence->input_blocks,
        .encoder_length = static_cast<int>(sequence->input.size()),
        .group = sequence->group,
    });
  }
  if (!inputs.empty()) {
    if (const Status done = model_->transformer().Encode(inputs, {}); !done) {
      return FailAll(scheduled, done.error());
    }
  }
  const auto num_rows = std::ranges::count_if(scheduled, &ScheduledTokens::reach_end);
  const bool logits_stay = num_rows <= runtime::kLogitsThatStay;
  const auto sample = [&](int sequence_idx, int, const runtime::Logits& logits) {
    const Sequence& sequence = *scheduled[static_cast<size_t>(sequence_idx)].sequence;
    sampling_.Add(requests_.at(sequence.id), logits, logits_stay);
  };
  if (const Status done = model_->transformer().Forward(step, sample, phase, decode_follows);
      !done) {
    static_cast<void>(sampling_.Take(model_->pool()));
    return FailAll(scheduled, done.error());
  }
  std::vector<StepSampling::Sampled> all_sampled = sampling_.Take(model_->pool());
  std::string reason;
  if (!std::ranges::all_of(all_sampled, [](const auto& each) { return each.token.has_value(); })) {
    reason = not_finite_.Find(*model_, step);
  }
  scheduler_.Complete(scheduled);

  std::vector<Update> updates;
  for (const ScheduledTokens& each : scheduled) {
    if (auto progress = requests_.at(each.sequence->id).Progress()) {
      updates.push_back(*std::move(progress));
    }
  }
  for (auto& [request, token] : all_sampled) {
    if (!token) {
      Update& failed = updates.emplace_back();
      failed.request = request->sequence().id;
      failed.error = NotFiniteError(reason);
      continue;
    }
    const bool is_eos = is_eos_[static_cast<size_t>(token->token)];
    updates.push_back(request->Append(*std::move(token), is_eos));
  }
  return updates;
}

Status CheckRequestOptions(const Request& request) {
  if (request.max_tokens && *request.max_tokens < 1) {
    return Error{
        fmt::format("max_tokens {} is out of range; it must be 1 or more", *request.max_tokens)};
  }
  if (request.num_logprobs && (*request.num_logprobs < 0 || *request.num_logprobs > kMaxLogprobs)) {
    return Error{fmt::format("{} logprobs per token are out of range; ask for 0 to {}",
                             *request.num_logprobs, kMaxLogprobs)};
  }
  if (request.stop.size() > kMaxStopStrings) {
    return Error{fmt::format("{} stop strings; at most {} are allowed", request.stop.size(),
                             kMaxStopStrings)};
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return Error{fmt::format("a stop string of {} bytes; it must have 1 to {}", stop.size(),
                               kMaxStopBytes)};
    }
  }
  return Validate(request.sampling);
}

SamplingOptions DefaultSampling(const checkpoint::GenerationConfig& config) {
  SamplingOptions sampling;
  const bool samples = config.do_sample.value_or(false);
  sampling.temperature = samples ? config.temperature.value_or(1.0) : 0.0;
  sampling.top_k = config.top_k.value_or(samples ? 50 : 0);
  sampling.top_p = config.top_p.value_or(1.0);
  sampling.min_p = config.min_p.value_or(0.0);
  sampling.repetition_penalty = config.repetition_penalty.value_or(1.0);
  return sampling;
}

}  // namespace convene::engine
