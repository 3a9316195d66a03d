// The logits of one model over a scored text, kept in memory so that others, which are loaded after
// it, can be compared with it. Only one model is in memory at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/loaded_model.h"
#include "evaluate/logits_difference.h"
#include "evaluate/scored_text.h"

namespace convene::evaluate {

class ReferenceLogits {
 public:
  // Takes the memory, before any model is loaded and finds it gone. `text` must outlive this.
  // Error: more than `limit_bytes`.
  static Result<ReferenceLogits> Reserve(const ScoredText& text, int vocab_size,
                                         uint64_t limit_bytes);

  // Computes them, and compares them with themselves for their likelihood.
  // Errors: as engine::ForEachLogits.
  Result<LogitsDifference> Compute(engine::LoadedModel& model);

  // Computes those of `model` and compares as they come.
  Result<LogitsDifference> Compare(engine::LoadedModel& model) const;

 private:
  using Windows = std::vector<std::span<const int32_t>>;

  ReferenceLogits(Windows windows, int64_t num_rows, int vocab_size)
      : windows_(std::move(windows)),
        vocab_size_(static_cast<size_t>(vocab_size)),
        logits_(static_cast<size_t>(num_rows) * vocab_size_) {}

  // Calls f(row of logits_, next token, logits) for every position that has a next token.
  template <typename F>
  Status ForEachScored(engine::LoadedModel& model, F&& f) const;

  Windows windows_;
  size_t vocab_size_;
  std::vector<float> logits_;  // (scored positions, vocab)
};

}  // namespace convene::evaluate
