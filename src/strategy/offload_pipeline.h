// The offload pipeline (Cao et al., "MoE-Lightning", 2024, Algorithm 1, "CGOPipe"): weights come
// page by page from a slow tier while the device computes one micro-batch and the host attends to
// the next. It builds the schedule of a decode step; policy is a search of planner/.
#pragma once

#include "schedule/schedule.h"

namespace convene::strategy {

struct OffloadPipeline {
  int num_layers = 1;
  int micro_batches = 1;   // of a step's sequences; as many pages are a layer's streamed weights
  int pinned_pages = 3;    // buffers between the two hops: a page is staged into one, then loaded
  bool next_step = false;  // the last layer loads the first one's weights for the next step
  int lead = 2;            // micro-batches that attention is ahead; at most pinned_pages
  // Of one task. Copies have link_bytes and what they take of the memory.
  schedule::Work pre_attention = {};   // norm, queries, keys and values
  schedule::Work send_qkv = {};        // down to the host
  schedule::Work attend = {};          // on the host
  schedule::Work send_hidden = {};     // up to the device
  schedule::Work post_attention = {};  // output projection and experts
  schedule::Work load_page = {};       // pinned memory to the device
  schedule::Work stage_page = {};      // pageable to pinned memory
};

// The layers of one step on one rank. Streamed is what kPostAttention reads; what kPreAttention
// reads stays on the device. The first layer's pages are there already, and the device holds those
// of two layers: a page of layer i + 2 waits for all of layer i. Precondition: all counts are at
// least 1.
schedule::Schedule BuildOffloadPipeline(const OffloadPipeline& parameters);

}  // namespace convene::strategy
