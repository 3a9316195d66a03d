// Keys and values of a step's rows into the KV cache.
#pragma once

#include "device/cpu/cpu_kv_cache.h"
#include "device/cpu/forward_context.h"
#include "device/step_rows.h"

namespace convene::device {

// Where they are, as rows of floats: key of head h at first_key + h * key_dim, behind the last key
// the values, of head h at h * value_dim.
struct KeysAndValues {
  const RowBuffer& rows;
  int first_key = 0;
  int num_heads = 0;
  int key_dim = 0;
  int value_dim = 0;  // 0: values are a part of the keys
};

// To the blocks that `rows` have in layer `cache_layer` of the cache; of these rows alone, which
// are whole sequences.
void StoreKv(const ForwardContext& context, const CpuKvCache& cache, int cache_layer,
             const StepRows& rows, const KeysAndValues& from, OwnRows those);
// Of all rows.
inline void StoreKv(const ForwardContext& context, const CpuKvCache& cache, int cache_layer,
                    const StepRows& rows, const KeysAndValues& from) {
  StoreKv(context, cache, cache_layer, rows, from, {0, rows.num_rows()});
}

}  // namespace convene::device
