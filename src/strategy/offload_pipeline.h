// A decode step of a model whose experts lie in a slow tier, in the orders that MoE-Lightning
// compares (Cao et al., 2024, Fig. 6): its own, CGOPipe (Algorithm 1), whose weights come page by
// page while the device computes one micro-batch and the host attends to the next, and those of
// others, which load a layer as a whole. It builds schedules; policy is a search of planner/.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "model/model_spec.h"
#include "schedule/schedule.h"
#include "strategy/step.h"

namespace convene::strategy {

enum class OffloadOrder {
  kCgo,        // pages of weights between small transfers, attention on the host ahead
  kS2,         // attention on the host two ahead, weights of a layer as a whole
  kS3,         // attention on the host, nothing beside it; weights as a whole (FlexGen(c))
  kS4,         // attention on the device, keys and values loaded one ahead (FlexGen)
  kLayerwise,  // a layer is loaded when the last one is through; the cache is on the device
               // (DeepSpeed)
};
inline constexpr std::array kOffloadOrders = {OffloadOrder::kCgo, OffloadOrder::kS2,
                                              OffloadOrder::kS3, OffloadOrder::kS4,
                                              OffloadOrder::kLayerwise};

std::string_view Name(OffloadOrder order);  // "cgo", "s2", "s3", "s4", "layerwise"
std::optional<OffloadOrder> OffloadOrderNamed(std::string_view name);
inline bool AttendsOnHost(OffloadOrder order) {
  return order != OffloadOrder::kS4 && order != OffloadOrder::kLayerwise;
}

struct OffloadPipeline {
  OffloadOrder order = OffloadOrder::kCgo;
  int micro_batches = 1;  // of a step's sequences; of kCgo, as many pages are a layer's weights
  // Of kCgo: buffers between the two hops, a page is staged into one, then loaded. 0: the weights
  // lie in pinned memory, and nothing is staged.
  int pinned_pages = 3;
  bool next_step = false;  // the first layer's weights are loaded for the next step
  int lead = 2;  // of kCgo: micro-batches that attention is ahead; at most pinned_pages, if any
  // Of the others: a layer is loaded when the one before it is through, as kLayerwise always does.
  bool loads_behind = false;
  ElementBytes bytes = {};
};

// Of a layer's streamed weights.
inline int PagesOf(const OffloadPipeline& pipeline) {
  return pipeline.order == OffloadOrder::kCgo ? pipeline.micro_batches : 1;
}

// A step of a decoder on one rank, from tokens to logits. Streamed are the weights of experts and
// of dense feed-forward layers; all others stay on the device. The first layer's are there
// already, and the device holds those of two layers: a page of layer i + 2 waits for all of layer
// i. A page for the next step has the layer behind the last one. Checked as BuildStep, but that
// buffers are free again (pinned ones when a page is staged into them, those of two micro-batches'
// keys and values of kS4) is this builder's word.
// Precondition: all counts are at least 1, and the model has no encoder.
schedule::Schedule BuildOffloadPipeline(const model::ModelSpec& spec,
                                        const OffloadPipeline& parameters);

}  // namespace convene::strategy
