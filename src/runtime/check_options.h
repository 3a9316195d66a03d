// What of a model and its options cannot be computed, before anything is made of them.
#pragma once

#include "base/result.h"
#include "device/device.h"
#include "runtime/transformer_options.h"
#include "weights/weight_store.h"

namespace convene::runtime {

// Errors: what the device does not support; roles that cannot be executed; options that do not go
// together. Decode's roles are those of prefill only where they are unset.
Status CheckOptions(weights::WeightStore& weights, const device::Device& device,
                    const TransformerOptions& options);

}  // namespace convene::runtime
