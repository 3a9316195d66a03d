// The offload pipeline (Cao et al., "MoE-Lightning", 2024, Algorithm 1, "CGOPipe"): weights come
// page by page from a slow tier while the device computes one micro-batch and the host attends to
// the next. It builds the schedule of a decode step; policy is a search of planner/.
#pragma once

#include "model/model_spec.h"
#include "schedule/schedule.h"
#include "strategy/step.h"

namespace convene::strategy {

struct OffloadPipeline {
  int micro_batches = 1;   // of a step's sequences; as many pages are a layer's streamed weights
  int pinned_pages = 3;    // buffers between the two hops: a page is staged into one, then loaded
  bool next_step = false;  // the first layer's weights are loaded for the next step
  int lead = 2;            // micro-batches that attention is ahead; at most pinned_pages
  ElementBytes bytes = {};
};

// A step of a decoder on one rank, from tokens to logits. Streamed are the weights of experts and
// of dense feed-forward layers; all others stay on the device. The first layer's pages are there
// already, and the device holds those of two layers: a page of layer i + 2 waits for all of layer
// i. A page for the next step has the layer behind the last one. Checked as BuildStep, but that
// pinned buffers are free again when a page is staged into them is this builder's word.
// Precondition: all counts are at least 1, and the model has no encoder.
schedule::Schedule BuildOffloadPipeline(const model::ModelSpec& spec,
                                        const OffloadPipeline& parameters);

}  // namespace convene::strategy
