// In which formats a model is held and computed. What each means: kernels/packed_matrix.h,
// kernels/activation_row.h, kernels/kernel_set.h.
#pragma once

#include "kernels/kernel_set.h"
#include "weights/model_weights.h"

namespace convene::runtime {

// Together: f32 weights, activations and cache; bf16 weights with bf16 activations; integer weights
// with int8 or bf16 activations; the cache bf16 or int8.
struct Formats {
  weights::WeightFormats weights;
  kernels::ActivationFormat activations = kernels::ActivationFormat::kBf16;
  kernels::KvFormat kv = kernels::KvFormat::kBf16;
};

// What goes with weights of a format where nothing else is wished.
inline Formats DefaultFormats(kernels::WeightFormat weights) {
  Formats formats{.weights = {.matrices = weights}};
  if (weights == kernels::WeightFormat::kF32) {
    formats.activations = kernels::ActivationFormat::kF32;
    formats.kv = kernels::KvFormat::kF32;
  } else if (kernels::IsInteger(weights)) {
    formats.activations = kernels::ActivationFormat::kInt8;
  }
  return formats;
}

}  // namespace convene::runtime
