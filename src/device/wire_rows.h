// In which form rows travel between ranks, which follows from the formats of activations and wire
// alone: all ranks and devices know it of each other. How rows get into that form is the device's
// matter.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/wire_format.h"
#include "kernels/activation_row.h"
#include "model/model_spec.h"

namespace convene::device {

struct WireRows {
  // Of rows that go to experts; none: activations as they are, where that is exact and no longer
  // than what was asked for.
  std::optional<comm::WireFormat> dispatch = {};
  // Of partial sums of attention, and of what experts return.
  comm::WireFormat sums = comm::WireFormat::kF32;
  comm::WireFormat returned = comm::WireFormat::kF32;
  int64_t dispatch_bytes = 0;  // of a row
  int64_t sum_bytes = 0;
  int64_t returned_bytes = 0;
  int64_t gathered_bytes = 0;  // of the wider kind of TravellingRows (device.h)
};

WireRows WireRowsOf(const model::ModelSpec& spec, kernels::ActivationFormat activations,
                    comm::WireFormat wire, bool returns_fp8 = false);

// From one row of `width` elements to the next one: rows begin at cache lines.
int64_t RowStride(kernels::ActivationFormat format, int width);

}  // namespace convene::device
