// What the group behind "Optimizing End to End Inference Time on MoE models" publishes of its
// figures in its public repository (github.com/sacs-epfl/moe-inference): the values of Figs. 6.2 to
// 6.5, which the text has in pictures alone, and times of single layers. Nothing here is computed
// but medians.
#pragma once

#include <span>

namespace convene::papers {

// Milliseconds of a layer with experts: DeepSpeed's with a capacity factor, and both of theirs.
struct SlicingTimes {
  double baseline = 0;
  double sliced = 0;
  double blocks = 0;  // MegaBlocks
};

// Medians over the 100 iterations of rank 0 and the six layers with experts: of the encoder-only
// model, and of the decoder of the encoder-decoder model, which gets one token of each sequence.
// Of outputs/ at commit 1dfb393c8f0693c8fd1f4484e3d42d169f2af4c6, four GPUs, router skew 0.6.
struct PublishedLayer {
  int num_experts = 0;
  int batch = 0;  // sequences of 120 tokens, of each GPU
  double capacity_factor = 0;
  SlicingTimes encoder = {};
  SlicingTimes decoder = {};
};
std::span<const PublishedLayer> PublishedLayers();

// Speed-ups over DeepSpeed, in the mean over layers, of plots/2025-02-03_12-31, -33, -34 and -35 at
// commit 6fa2901cb105a8ffb063faf542daf62857f25c66. Those that the text names (6.84 and 1.26) are
// among them.
struct PublishedSlicing {
  double at = 0;  // what the figure varies
  int num_experts = 0;
  int batch = 0;
  double capacity_factor = 0;
  double sliced_encoder = 0;  // encoder-only model
  double blocks_encoder = 0;
  double sliced_both = 0;  // encoder-decoder model
  double blocks_both = 0;
};
struct SlicingFigure {
  const char* name;
  const char* varies;
  std::span<const PublishedSlicing> points;
};
std::span<const SlicingFigure> SlicingFigures();

}  // namespace convene::papers
