// What a frame has in the memory of a CPU: host memory all of it, so that rows travel from where
// they lie.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "device/cpu/activations.h"
#include "device/cpu/rotary_angles.h"
#include "device/frame.h"

namespace convene::device {

class CpuFrame final : public FrameMemory {
 public:
  CpuFrame(const model::ModelSpec& spec, Activations memory)
      : activations(std::move(memory)), angles(spec) {}

  std::span<std::byte> exchange() const override { return activations.exchange.bytes(); }
  std::span<std::byte> HostRows(TravellingRows kind, OwnRows rows) const override {
    const RowBuffer& buffer = kind == TravellingRows::kNormed   ? activations.normed
                              : kind == TravellingRows::kStates ? activations.normed_float
                                                                : activations.hidden;
    return {buffer.row(rows.first), static_cast<size_t>(rows.count * buffer.stride_bytes)};
  }

  Activations activations;
  RotaryAngles angles;
  // Of the layer in work, until they are fetched.
  std::vector<int32_t> experts;       // (own rows, top_k)
  std::vector<float> expert_weights;  // (own rows, top_k)
  std::vector<int32_t> predicted;     // as Frame's
};

inline CpuFrame& CpuFrameOf(const Frame& frame) { return static_cast<CpuFrame&>(*frame.memory); }
inline const Activations& ActivationsOf(const Frame& frame) {
  return CpuFrameOf(frame).activations;
}

}  // namespace convene::device
