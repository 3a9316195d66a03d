// Runs given token sequences through a model and hands out their logits, for evaluation: nothing is
// sampled and nothing is kept between calls.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "engine/loaded_model.h"

namespace convene::engine {

// An error where the model has an encoder: it predicts answers, not the next token of a text.
Status CheckPredictsText(const model::ModelSpec& spec);

// (vocab) float32, valid during the call.
using ScoredSink =
    std::function<void(int sequence_idx, int position, std::span<const float> logits)>;

// Calls `sink` for every position of every sequence, the positions
// of a sequence in order; several short sequences share a step. Sequences may be empty. Uses the
// model's whole KV cache, so that no Engine may have the model meanwhile.
// Errors: that of CheckPredictsText, a token id outside the vocabulary, a sequence longer than the
// model's context, logits that are NaN or infinite (the sink has got those before).
Status ForEachLogits(LoadedModel& model, std::span<const std::span<const int32_t>> sequences,
                     const ScoredSink& sink);

}  // namespace convene::engine
