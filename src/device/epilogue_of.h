// What stands behind the first product of a feed-forward block, as kernels name it.
#pragma once

#include "kernels/kernel_set.h"
#include "model/model_spec.h"

namespace convene::device {

inline kernels::Epilogue EpilogueOf(const model::ActivationSpec& activation) {
  switch (activation.kind) {
    case model::Activation::kSiluMul:
      return kernels::Epilogue::kSiluMul;
    case model::Activation::kClampedSwiglu:
      return kernels::Epilogue::kClampedSwiglu;
    case model::Activation::kRelu:
      return kernels::Epilogue::kRelu;
  }
  return kernels::Epilogue::kSiluMul;
}

}  // namespace convene::device
