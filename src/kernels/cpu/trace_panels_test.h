// The GEMM of an instruction set with every load of weights and every prefetch written down, for
// the test of what a way of reading panels changes. What is written down is only its hash.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm.h"

namespace convene::kernels {

// Of the order, kinds and addresses of all that is loaded and fetched. One thread at a time. Only
// where the machine has the instruction set.
namespace avx2 {
uint64_t TraceGemm(const PanelGemm& gemm);
}
namespace avx512_bf16 {
uint64_t TraceGemm(const PanelGemm& gemm);
}

namespace cpu {

enum class Traced : uint8_t { kLine, kHalves, kPart, kInts, kPrefetch };

template <class Base>
struct TracingIsa : Base {
  static inline uint64_t hash = 0;

  static void Add(Traced what, const std::byte* at) {
    hash = (hash ^ (reinterpret_cast<uintptr_t>(at) * 8 + static_cast<uint64_t>(what))) *
           uint64_t{0x100000001b3};
    hash ^= hash >> 29;
  }

  static void Prefetch(const std::byte* line) { Add(Traced::kPrefetch, line); }
  template <DotKind kKind>
  static auto LoadWeights(const std::byte* from) {
    Add(Traced::kLine, from);
    return Base::template LoadWeights<kKind>(from);
  }
  static auto LoadHalfLines(const std::byte* from) {
    Add(Traced::kHalves, from);
    return Base::LoadHalfLines(from);
  }
  template <DotKind kKind>
  static auto LoadPart(const std::byte* from, int part) {
    Add(Traced::kPart, from + part);
    return Base::template LoadPart<kKind>(from, part);
  }
  static auto LoadInts(const std::byte* from) {
    Add(Traced::kInts, from);
    return Base::LoadInts(from);
  }
};

template <class Isa>
uint64_t TraceGemmOf(const PanelGemm& gemm) {
  TracingIsa<Isa>::hash = 0;
  Gemm<TracingIsa<Isa>>(gemm);
  return TracingIsa<Isa>::hash;
}

}  // namespace cpu
}  // namespace convene::kernels
