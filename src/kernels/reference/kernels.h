// The kernels as scalar code with double accumulation: the specification that all others are tested
// against, and what runs where nothing faster is supported. Not meant to be fast.
#pragma once

#include "kernels/kernel_set.h"

namespace convene::kernels::reference {

const KernelSet& Kernels();

// Element (row, col) of a panel of packed weights.
float PanelElement(const PackedPanel& panel, int row, int col);

// Element `index` of a row of activations, kF32 or kBf16.
float LoadActivation(ActivationFormat format, const void* row, int64_t index);
void StoreActivation(ActivationFormat format, void* row, int64_t index, float value);

}  // namespace convene::kernels::reference
