#include "engine/score_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/units.h"
#include "engine/check_tokens.h"
#include "engine/scheduler.h"

namespace convene::engine {
namespace {

// One step: as many whole sequences as fit in it, or a chunk of one that does not.
class Scorer {
 public:
  Scorer(LoadedModel& model, const runtime::LogitsSink& sink)
      : model_(model), sink_(sink), blocks_(static_cast<size_t>(model.num_kv_blocks())) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  void Add(std::span<const int32_t> tokens, int sequence_idx) {
    const auto num_tokens = static_cast<int>(tokens.size());
    if (num_tokens == 0) return;
    if (num_step_tokens_ + num_tokens > model_.max_step_tokens() ||
        num_step_blocks_ + Scheduler::BlocksFor(num_tokens) > model_.num_kv_blocks()) {
      Flush();
    }
    for (int position = 0; position < num_tokens;) {
      const int count = std::min(num_tokens - position, model_.max_step_tokens());
      steps_.push_back({
          .tokens = tokens.subspan(static_cast<size_t>(position), static_cast<size_t>(count)),
          .first_position = position,
          .blocks = std::span<const int32_t>(blocks_).subspan(
              static_cast<size_t>(num_step_blocks_),
              static_cast<size_t>(Scheduler::BlocksFor(position + count))),
          .prompt_length = num_tokens,
          .first_logits_token = 0,
      });
      sequence_idx_.push_back(sequence_idx);
      num_step_tokens_ += count;
      position += count;
      if (position < num_tokens) Forward();
    }
    num_step_blocks_ += Scheduler::BlocksFor(num_tokens);
  }

  void Flush() {
    if (!steps_.empty()) Forward();
    num_step_blocks_ = 0;
  }

 private:
  void Forward() {
    model_.transformer().Forward(
        steps_, [&](int step_idx, int token_idx, std::span<const float> logits) {
          const auto i = static_cast<size_t>(step_idx);
          sink_(sequence_idx_[i], steps_[i].first_position + token_idx, logits);
        });
    steps_.clear();
    sequence_idx_.clear();
    num_step_tokens_ = 0;
  }

  LoadedModel& model_;
  const runtime::LogitsSink& sink_;
  std::vector<int32_t> blocks_;
  std::vector<runtime::SequenceStep> steps_;
  std::vector<int> sequence_idx_;  // of each of steps_
  int num_step_tokens_ = 0;
  int num_step_blocks_ = 0;
};

}  // namespace

Status CheckPredictsText(const model::ModelSpec& spec) {
  if (!spec.has_encoder()) return {};
  return Error{fmt::format(
      "a {} model is an encoder-decoder, which predicts an answer to an input, not the next token "
      "of a text; use run, batch or encode",
      spec.family)};
}

Status ForEachLogits(LoadedModel& model, std::span<const std::span<const int32_t>> sequences,
                     const runtime::LogitsSink& sink) {
  if (const Status checked = CheckPredictsText(model.spec()); !checked) return checked;
  for (const std::span<const int32_t> tokens : sequences) {
    if (const Status status = CheckTokens(tokens, model.spec().vocab_size); !status) return status;
    if (std::ssize(tokens) > model.context()) {
      return Error{fmt::format("{} tokens are more than the context of {}; raise --context",
                               FormatCount(tokens.size()), model.context())};
    }
  }
  Scorer scorer(model, sink);
  for (size_t i = 0; i < sequences.size(); ++i) scorer.Add(sequences[i], static_cast<int>(i));
  scorer.Flush();
  return {};
}

}  // namespace convene::engine
