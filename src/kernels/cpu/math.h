// Vector mathematics on an instruction set's primitives: exponential, SiLU, storing activations.
#pragma once

#include "kernels/activation_row.h"
#include "tensor/dtype.h"

namespace convene::kernels::cpu {

// e^x to about 2 units in the last place; exactly 0 below -87 and exactly 1 at 0. Coefficients:
// Cephes expf (Moshier), degree 5 after reduction to [-ln 2 / 2, ln 2 / 2].
template <class Isa>
inline typename Isa::Floats Exp(typename Isa::Floats x) {
  const auto lowest = Isa::Broadcast(-87.0f);
  const auto bounded = Isa::Min(Isa::Max(x, lowest), Isa::Broadcast(88.7f));
  const auto exponent = Isa::Round(bounded * Isa::Broadcast(1.44269504088896341f));
  auto r = Isa::MultiplyAdd(exponent, Isa::Broadcast(-0.693359375f), bounded);
  r = Isa::MultiplyAdd(exponent, Isa::Broadcast(2.12194440e-4f), r);
  auto p = Isa::Broadcast(1.9875691500e-4f);
  p = Isa::MultiplyAdd(p, r, Isa::Broadcast(1.3981999507e-3f));
  p = Isa::MultiplyAdd(p, r, Isa::Broadcast(8.3334519073e-3f));
  p = Isa::MultiplyAdd(p, r, Isa::Broadcast(4.1665795894e-2f));
  p = Isa::MultiplyAdd(p, r, Isa::Broadcast(1.6666665459e-1f));
  p = Isa::MultiplyAdd(p, r, Isa::Broadcast(5.0000001201e-1f));
  p = Isa::MultiplyAdd(p, r * r, r) + Isa::Broadcast(1.0f);
  return Isa::ZeroWhereLess(x, lowest, Isa::Scale(p, exponent));
}

// 2^x for x of at most 0 to about 2 units in the last place; exactly 0 below -126, and of minus
// infinity. Coefficients: Cephes exp2f (Moshier). Two thirds of Exp's operations.
template <class Isa>
inline typename Isa::Floats Exp2OfNegative(typename Isa::Floats x) {
  const auto exponent = Isa::Round(x);
  const auto r = x - exponent;
  auto p = Isa::Broadcast(1.535336188319500e-4f);
  p = Isa::MultiplyAdd(p, r, Isa::Broadcast(1.339887440266574e-3f));
  p = Isa::MultiplyAdd(p, r, Isa::Broadcast(9.618437357674640e-3f));
  p = Isa::MultiplyAdd(p, r, Isa::Broadcast(5.550332471162809e-2f));
  p = Isa::MultiplyAdd(p, r, Isa::Broadcast(2.402264791363012e-1f));
  p = Isa::MultiplyAdd(p, r, Isa::Broadcast(6.931472028550421e-1f));
  p = Isa::MultiplyAdd(p, r, Isa::Broadcast(1.0f));
  return Isa::ZeroWhereLess(x, Isa::Broadcast(-126.0f), Isa::Scale(p, exponent));
}

template <class Isa>
inline typename Isa::Floats Silu(typename Isa::Floats x) {
  const auto one = Isa::Broadcast(1.0f);
  return x / (one + Exp<Isa>(Isa::Zero() - x));
}

// `count` (up to 16) lanes as activations of `format` (kF32 or kBf16), from element `index` of
// `row` on.
template <class Isa>
inline void StoreActivations(ActivationFormat format, void* row, int64_t index,
                             typename Isa::Floats value, int count) {
  if (format == ActivationFormat::kF32) {
    Isa::StorePartial(static_cast<float*>(row) + index, value, count);
  } else if (count == kLanes) {
    Isa::StoreBf16(static_cast<tensor::Bf16*>(row) + index, value);
  } else {
    Isa::StoreBf16Partial(static_cast<tensor::Bf16*>(row) + index, value, count);
  }
}

}  // namespace convene::kernels::cpu
