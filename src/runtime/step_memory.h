// The memory that a rank's steps work in: a workspace, and a frame's activations for each
// micro-batch. Sized for the largest step, before anything is loaded.
#pragma once

#include <vector>

#include "base/result.h"
#include "runtime/activations.h"
#include "runtime/feed_forward.h"
#include "runtime/frame.h"
#include "runtime/transformer.h"
#include "runtime/workspace.h"

namespace convene::runtime {

struct StepMemory {
  Workspace workspace;
  std::vector<Activations> frames;  // by micro-batch

  static memory::Amounts SizeBytes(const model::ModelSpec& spec, const TransformerOptions& options,
                                   int num_threads);
  static Result<StepMemory> Create(const model::ModelSpec& spec, const TransformerOptions& options,
                                   int num_threads, memory::Ledger& ledger);
};

FeedForward::Options FeedForwardOptions(const TransformerOptions& options);

// Of micro-batch `index`.
Frame::Options FrameOptions(const model::ModelSpec& spec, const TransformerOptions& options,
                            int index);

// Steps of fewer tokens over all groups are one micro-batch: not every rank would have rows in
// each.
int FewestTokensToCut(const TransformerOptions& options);

// Of the longest sequence, in tokens.
int ContextOf(const TransformerOptions& options);

}  // namespace convene::runtime
