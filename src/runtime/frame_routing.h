// What becomes of a frame's routing between the router and the rows of its experts
// (device/expert_rows.h): what experiments and a capacity of experts change of it, the shared
// expert as one more where ranks divide it, and how many tokens chose each.
#pragma once

#include <cstdint>
#include <vector>

#include "device/frame.h"
#include "device/layer.h"
#include "model/model_spec.h"
#include "runtime/expert_capacity.h"
#include "runtime/router_override.h"
#include "runtime/transformer_options.h"

namespace convene::runtime {

class FrameRouting {
 public:
  // `spec`: the rank's share of the model.
  FrameRouting(const model::ModelSpec& spec, const TransformerOptions& options);

  // Whether experts are others than the router chose, or count otherwise.
  bool changes() const { return override_.is_set() || capacity_.is_limited(); }

  // Once a layer's routing was fetched: Frame::experts and Frame::expert_weights as the layer is to
  // have them.
  void Change(const device::Layer& layer, device::Frame& frame);
  // Gives the routing of the frame's own rows to its expert_rows, and counts what they chose.
  void BeginExpertRows(const device::Layer& layer, device::Frame& frame);

  // Tokens that chose each expert, per layer of the decoder, since the beginning.
  const std::vector<std::vector<int64_t>>& expert_counts() const { return expert_counts_; }

 private:
  bool divides_shared_;
  int num_decoder_layers_;
  RouterOverride override_;
  ExpertCapacity capacity_;
  std::vector<std::vector<int64_t>> expert_counts_;
};

}  // namespace convene::runtime
