// What a GEMM of few rows fetches while it reads a panel once from memory: the panel itself a
// little ahead, behind its end the panel that the thread takes next, and what the epilogue will
// touch. With more rows a panel is read several times from the caches, and the whole next one is
// fetched meanwhile (blocks.h).
#pragma once

#include "kernels/kernel_set.h"

namespace convene::kernels::cpu {

// What is fetched when the panel's bytes at `at` are read: what follows in memory belongs to other
// threads.
[[gnu::always_inline]] inline const std::byte* AheadOf(const PanelGemm& gemm, const std::byte* at) {
  const std::byte* end = gemm.weights.data + gemm.weights.values_bytes();
  const std::byte* ahead = at + gemm.streaming.ahead_bytes;
  if (ahead < end) return ahead;
  return gemm.next != nullptr ? gemm.next + (ahead - end) : at;
}

// To be called in each step, for the output row of that number and the scales. Stores wait for one
// another: one that misses the caches would hold up those that others wait for.
template <class Isa>
inline void FetchForEpilogue(const PanelGemm& gemm, int64_t step) {
  if (step == 0 && IsInteger(gemm.weights.format)) {
    const auto* scales = reinterpret_cast<const std::byte*>(gemm.weights.scales());
    for (int byte = 0; byte < 4 * gemm.weights.width; byte += 64) Isa::Prefetch(scales + byte);
  }
  if (gemm.streams_out || step >= gemm.num_rows) return;
  const bool halves = MakesActivations(gemm.epilogue) && gemm.out_format == ActivationFormat::kBf16;
  const std::byte* out = gemm.out + step * gemm.out_stride;
  for (int byte = 0; byte < gemm.columns * (halves ? 2 : 4); byte += 64) Isa::Prefetch(out + byte);
}

}  // namespace convene::kernels::cpu
