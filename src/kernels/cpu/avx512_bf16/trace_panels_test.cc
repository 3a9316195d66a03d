// Compiled for its instruction set, so it includes no library.
#include "kernels/cpu/trace_panels_test.h"

#include "kernels/cpu/avx512_bf16/isa.h"

namespace convene::kernels::avx512_bf16 {

uint64_t TraceGemm(const PanelGemm& gemm) { return cpu::TraceGemmOf<Isa>(gemm); }

}  // namespace convene::kernels::avx512_bf16
