// The kernels as scalar code with double accumulation: the specification that all others are tested
// against, and what runs where nothing faster is supported. Not meant to be fast.
#pragma once

#include "kernels/kernel_set.h"

namespace convene::kernels::reference {

const KernelSet& Kernels();

// Element (row, col) of a panel of packed weights.
float PanelElement(WeightFormat format, const std::byte* panel, int width, int row, int col);

// Element `index` of a row of activations.
float LoadActivation(WeightFormat format, const void* row, int64_t index);
void StoreActivation(WeightFormat format, void* row, int64_t index, float value);

}  // namespace convene::kernels::reference
