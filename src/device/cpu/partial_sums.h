// What ranks that divide attention's heads make of the same rows: sums of squares of projections
// that are normalised as a whole, and partial outputs, packed to travel and added up.
#pragma once

#include "device/cpu/forward_context.h"
#include "device/frame.h"
#include "strategy/role.h"

namespace convene::device {

class PartialSums {
 public:
  PartialSums(ForwardContext& context, const strategy::AttentionRole& own)
      : context_(context), own_(own) {}

  // Of what is here of queries and keys, in qkv; `local`: the layer as this rank has it.
  void SumSquares(const Frame& frame, const model::AttentionSpec& local);
  // Normalises queries and keys in qkv; `whole` is the layer as all ranks together have it.
  void NormalizeWhole(const Frame& frame, const model::AttentionSpec& local,
                      const model::AttentionSpec& whole, std::span<const float> query_norm,
                      std::span<const float> key_norm);

  // The first rows of partial_out, to their owners.
  void Pack(const Frame& frame, int num_rows);
  // The sum of all parts, times the residual's scale, to hidden.
  void Add(const Frame& frame);

 private:
  ForwardContext& context_;
  strategy::AttentionRole own_;
};

}  // namespace convene::device
