// What of a model matters to whoever streams it through a fast tier of memory: how many weights
// are streamed and how many stay, what a token costs, and what its keys and values take. Counted
// from shapes alone, of a decoder; amounts are of all layers together. Who plans with it is
// offload_policy.h and model_roofline.h.
#pragma once

#include <vector>

#include "model/model_spec.h"

namespace convene::planner {

// Layers with so many experts of one size; a dense layer's feed-forward block is an expert that
// every token visits.
struct StreamedBlocks {
  int num_layers = 0;
  double num_experts = 1;
  double top_k = 1;
  double expert_elements = 0;  // of all matrices of one expert
};

// Layers whose attention is alike.
struct AttentionBlocks {
  int num_layers = 0;
  double window = 0;              // keys that a token sees at most; 0: all
  double score_flops = 0;         // of a key that a generated token sees, in one layer
  double prompt_score_flops = 0;  // of one that a prompt's token sees
  double cached_elements = 0;     // of a token, in one layer
};

struct OffloadModel {
  int num_layers = 0;
  double hidden = 0;
  double most_expert_row = 0;    // elements of a row between an expert's matrices, of all it visits
  double query_elements = 0;     // of a row's queries, of all layers
  double output_elements = 0;    // of a row that the output projection reads, of all layers
  double resident_elements = 0;  // weights that are not streamed
  double token_flops = 0;        // of them, per token: projections, routers, shared experts, head
  double token_elements = 0;     // that a step reads of them (not those of the embedding)
  double most_streamed_layer = 0;  // streamed elements of one layer, at most
  std::vector<StreamedBlocks> streamed = {};
  std::vector<AttentionBlocks> attention = {};

  // Weights that are streamed: routed experts and dense feed-forward layers, whole, and those that
  // so many tokens of one pass are expected to visit (even routing, tokens independent).
  double StreamedElements() const;
  double VisitedElements(double tokens) const;
  double StreamedFlops(double tokens) const;

  // Of one sequence: keys and values that a token reads that sees `context` keys, FLOPs of its
  // scores, and those of a whole prompt.
  double CachedElements(double context) const;
  double ScoreFlops(double context) const;
  double PromptScoreFlops(double tokens) const;
};

// Precondition: the model has layers and no encoder.
OffloadModel OffloadModelOf(const model::ModelSpec& spec);

}  // namespace convene::planner
