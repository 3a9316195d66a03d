// convene's C++ interface: takes requests, runs many of them together, and gives back their tokens
// and text as they come. It reads no files but the model and speaks no protocol.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/active_request.h"
#include "engine/block_manager.h"
#include "engine/loaded_model.h"
#include "engine/not_finite.h"
#include "engine/phase_order.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/step_sampling.h"
#include "text/tokenizer.h"

namespace convene::engine {

// Not thread-safe; one thread makes all calls, the one that loaded the model.
class Engine {
 public:
  // `max_sequences` requests run at the same time, of all groups of ranks together. Without a
  // tokenizer there is no text: Update::text stays empty, and stop strings are refused.
  Engine(std::unique_ptr<LoadedModel> model, std::optional<text::Tokenizer> tokenizer,
         int max_sequences);

  const LoadedModel& model() const { return *model_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }

  // Tokens that end a text.
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }

  // What Submit would say of a request. Other threads may ask too.
  Status Check(const Request& request) const;

  // Whether a request that Check lets pass would take part in the next steps, and not wait for KV
  // blocks; so, too, if it is more urgent than one that is there.
  bool HasRoomFor(const Request& request) const;
  // Whether it would be read beside a prompt that takes whole steps, before others that wait.
  bool IsReadBesideLong(const Request& request) const {
    return !model_->spec().has_encoder() && scheduler_.IsReadBesideLong(request.prompt);
  }

  // Queues a request. Errors: an empty prompt, one that leaves no room in the context, an unknown
  // token, an option out of its range; the engine goes on with the others.
  Result<RequestId> Submit(Request request);

  // Ends a request: no more updates. Its KV cache stays available as a prefix.
  void Cancel(RequestId id);

  // How requests will come, from the next step on; kStream, unless this was called. It matters
  // where decode divides the experts in its own way.
  void Expect(Arrivals arrivals);

  // Between steps: divides those to come in time otherwise, as Transformer::UsePipeline.
  void UsePipeline(const strategy::Pipeline& pipeline) { model_->UsePipeline(pipeline); }

  // Computes one step. Updates are in order of arrival; of a request still in prefill there is
  // none, unless it reports progress. Empty if there is no request. A request whose logits are NaN
  // or infinite ends with an error; the others go on.
  std::vector<Update> Step();

  const runtime::PhaseChanges& phase_changes() const {
    return model_->transformer().phase_changes();
  }
  int num_requests() const { return scheduler_.num_sequences(); }
  int num_waiting() const { return scheduler_.num_waiting(); }  // of these
  // Of the KV caches of all groups: blocks that a request holds, and all.
  int num_held_kv_blocks() const;
  int num_kv_blocks() const;
  // Of the last step.
  const device::StepStatistics& step_statistics() const {
    return model_->transformer().statistics();
  }
  // Tokens that chose each expert so far, per layer of the decoder.
  const std::vector<std::vector<int64_t>>& expert_counts() const {
    return model_->transformer().expert_counts();
  }
  // Of experts on a disk, since the beginning; nothing where all are in memory.
  std::optional<weights::PageStatistics> page_statistics() const {
    if (model_->paged() == nullptr) return std::nullopt;
    return model_->paged()->statistics();
  }
  int64_t num_reused_tokens() const { return scheduler_.num_reused_tokens(); }
  int64_t num_preemptions() const { return scheduler_.num_preemptions(); }

 private:
  std::vector<Update> Execute(const std::vector<ScheduledTokens>& scheduled,
                              std::optional<strategy::Phase> phase, bool decode_follows);
  bool AnyGoesOn() const;  // to a second token

  std::unique_ptr<LoadedModel> model_;
  std::optional<text::Tokenizer> tokenizer_;
  std::vector<bool> is_eos_;  // by token id
  std::vector<int32_t> end_tokens_;
  std::vector<BlockManager> blocks_;  // of each group
  Scheduler scheduler_;
  std::optional<PhaseOrder> phase_order_;  // where experts move between phases
  std::map<RequestId, ActiveRequest> requests_;
  NotFiniteReason not_finite_;
  StepSampling sampling_;
  RequestId last_id_ = 0;
};

// What Submit checks without a model: everything but the prompt.
Status CheckRequestOptions(const Request& request);

// Greedy unless the checkpoint's generation_config.json says do_sample; fields that it does not set
// are those of transformers (top_k 50 when it samples).
SamplingOptions DefaultSampling(const checkpoint::GenerationConfig& config);

}  // namespace convene::engine
