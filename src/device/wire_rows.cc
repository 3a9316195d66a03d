#include "device/wire_rows.h"

#include <algorithm>

#include "device/exchange_memory.h"

namespace convene::device {
namespace {

using comm::WireFormat;
using kernels::ActivationFormat;

std::optional<WireFormat> DispatchFormat(ActivationFormat activations, WireFormat wire) {
  switch (activations) {
    case ActivationFormat::kInt8:
      return std::nullopt;
    case ActivationFormat::kBf16:
      return wire == WireFormat::kE4m3 ? std::optional(wire) : std::nullopt;
    case ActivationFormat::kF32:
      return wire == WireFormat::kF32 ? std::nullopt : std::optional(wire);
  }
  return std::nullopt;
}

// Bytes of an activation row without what is padding.
int64_t UnpaddedBytes(ActivationFormat format, int size) {
  return format == ActivationFormat::kInt8 ? kernels::ActivationRowBytes(format, size)
                                           : size * ElementBytes(format);
}

}  // namespace

WireRows WireRowsOf(const model::ModelSpec& spec, ActivationFormat activations, WireFormat wire,
                    bool returns_fp8) {
  const auto hidden = static_cast<size_t>(spec.hidden_size);
  WireRows rows{.dispatch = DispatchFormat(activations, wire),
                .sums = wire == WireFormat::kF32 ? wire : WireFormat::kBf16,
                .gathered_bytes = RowStride(activations, spec.hidden_size)};
  rows.dispatch_bytes = rows.dispatch ? static_cast<int64_t>(comm::RowBytes(*rows.dispatch, hidden))
                                      : UnpaddedBytes(activations, spec.hidden_size);
  rows.returned = wire == WireFormat::kE4m3 && returns_fp8 ? wire : rows.sums;
  rows.returned_bytes = static_cast<int64_t>(comm::RowBytes(rows.returned, hidden));
  rows.sum_bytes = static_cast<int64_t>(comm::RowBytes(rows.sums, hidden));
  if (spec.has_encoder()) {
    rows.gathered_bytes =
        std::max(rows.gathered_bytes, RowStride(ActivationFormat::kF32, spec.hidden_size));
  }
  return rows;
}

int64_t RowStride(ActivationFormat format, int width) {
  return WholeLines(kernels::ActivationRowBytes(format, width));
}

}  // namespace convene::device
