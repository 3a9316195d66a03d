// The kernel set of one instruction set, from the templates beside this file. A new instruction set
// is a folder with its primitives (isa.h) and one source that instantiates this.
#pragma once

#include "kernels/cpu/acting_way.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kv_block.h"
#include "kernels/kernel_set.h"

namespace convene::kernels::cpu {

template <class Isa>
constexpr KernelSet MakeKernels() {
  return {.name = Isa::kName,
          .gemm = Gemm<Isa>,
          .acting = ActingWay<Isa>,
          .quantize = Quantize<Isa>,
          .normalize = Normalize<Isa>,
          .convert = Convert<Isa>,
          .prepare_qkv = PrepareQkv<Isa>,
          .store_kv = StoreKv<Isa>,
          .load_keys = LoadKeys<Isa>,
          .attend = Attend<Isa>,
          .attend_span = AttendSpan<Isa>,
          .merge_spans = MergeSpans<Isa>,
          .combine = CombineRows<Isa>};
}

}  // namespace convene::kernels::cpu
