#include <cuda_runtime.h>

#include <cstdint>

#include "hardware/cuda/gpu_peaks.h"

namespace convene::hardware {
namespace {

// The tiles of a product: 64 rows of A for each group of warps, 256 columns of B, 64 deep.
constexpr int kGroups = 2;
constexpr int kGroupThreads = 128;
constexpr int kTileRowBytes = 128;
constexpr int kATileBytes = 64 * kTileRowBytes;
constexpr int kBTileBytes = 256 * kTileRowBytes;
constexpr int kProductBytes = kGroups * kATileBytes + kBTileBytes;
constexpr double kFlopsPerProduct = 2.0 * 64 * 256 * 16;
constexpr int kProductsInFlight = 16;
constexpr int kProductRounds = 8192;  // some 20 ms

// Of a tile whose rows are 128 bytes, swizzled, eight of them 1,024 bytes.
__device__ uint64_t Descriptor(const void* shared) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | (address & 0x3ffff) >> 4;
}

// d (64, 256) += a (64, 16) b (16, 256), spread over a group of warps.
__device__ __forceinline__ void AddProduct(float (&d)[128], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.eq.u32 adds, 1, 1;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "%128, %129, adds, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
        "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),
        "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
        "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),
        "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]),
        "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]),
        "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
        "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),
        "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
      : "l"(a), "l"(b));
}

__global__ void __launch_bounds__(kGroups* kGroupThreads, 1) MultiplyBf16(int rounds, float* out) {
  extern __shared__ __align__(1024) uint8_t tiles[];
  // Zeros would take less power, and let the clock be higher than weights do.
  auto* words = reinterpret_cast<uint32_t*>(tiles);
  for (uint32_t i = threadIdx.x; i < kProductBytes / sizeof(uint32_t); i += blockDim.x) {
    const uint32_t random = (i + 1) * 2654435761u;
    words[i] = 0x3f003f00u | (random & 0x807f807fu);  // 0.5 to 1, of either sign
  }
  asm volatile("fence.proxy.async;\n" ::: "memory");
  __syncthreads();

  const uint64_t a = Descriptor(tiles + threadIdx.x / kGroupThreads * kATileBytes);
  const uint64_t b = Descriptor(tiles + kGroups * kATileBytes);
  float d[128] = {};
  for (int round = 0; round < rounds; ++round) {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
    for (int i = 0; i < kProductsInFlight; ++i) {
      constexpr int kStepsOfTile = 4;  // of 16 elements, 32 bytes
      const uint64_t step = i % kStepsOfTile * (32 >> 4);
      AddProduct(d, a + step, b + step);
    }
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) sum += d[i];
  if (sum == 0.12345f) *out = sum;
}

constexpr int kF32Threads = 512;
constexpr int kF32Blocks = 4;  // on each multiprocessor
constexpr int kF32Chains = 16;
constexpr int kF32Unrolled = 16;
constexpr int kF32Rounds = 8192;  // some 20 ms

__global__ void __launch_bounds__(kF32Threads, kF32Blocks)
    MultiplyAddF32(float factor, float summand, int rounds, float* out) {
  float x[kF32Chains];
#pragma unroll
  for (int i = 0; i < kF32Chains; ++i) x[i] = static_cast<float>(threadIdx.x + i);
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int step = 0; step < kF32Unrolled; ++step) {
#pragma unroll
      for (int i = 0; i < kF32Chains; ++i) x[i] = fmaf(x[i], factor, summand);
    }
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kF32Chains; ++i) sum += x[i];
  if (sum == 0.12345f) *out = sum;
}

constexpr int kReadThreads = 512;
constexpr int kReadBlocks = 2;  // on each multiprocessor
constexpr int kReadsInFlight = 8;

__global__ void __launch_bounds__(kReadThreads, kReadBlocks)
    Read(const uint4* data, size_t count, float* out) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t at = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  uint32_t mixed = 0;
  for (; at + (kReadsInFlight - 1) * stride < count; at += kReadsInFlight * stride) {
    uint4 loaded[kReadsInFlight];
#pragma unroll
    for (int i = 0; i < kReadsInFlight; ++i) loaded[i] = __ldcs(data + at + i * stride);
#pragma unroll
    for (int i = 0; i < kReadsInFlight; ++i) {
      mixed ^= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
    }
  }
  for (; at < count; at += stride) {
    const uint4 loaded = __ldcs(data + at);
    mixed ^= loaded.x ^ loaded.y ^ loaded.z ^ loaded.w;
  }
  if (mixed == 0x12345678u) *out = 1;
}

__global__ void DoNothing() {}

}  // namespace

double EnqueueBf16Products(int num_multiprocessors, float* out, cudaStream_t stream) {
  MultiplyBf16<<<num_multiprocessors, kGroups * kGroupThreads, kProductBytes, stream>>>(
      kProductRounds, out);
  return kFlopsPerProduct * kGroups * kProductsInFlight * kProductRounds * num_multiprocessors;
}

double EnqueueF32MultiplyAdds(int num_multiprocessors, float* out, cudaStream_t stream) {
  MultiplyAddF32<<<num_multiprocessors * kF32Blocks, kF32Threads, 0, stream>>>(0.999f, 0.5f,
                                                                               kF32Rounds, out);
  return 2.0 * kF32Chains * kF32Unrolled * kF32Rounds * kF32Threads * kF32Blocks *
         num_multiprocessors;
}

void EnqueueRead(int num_multiprocessors, const void* data, size_t size_bytes, float* out,
                 cudaStream_t stream) {
  Read<<<num_multiprocessors * kReadBlocks, kReadThreads, 0, stream>>>(
      static_cast<const uint4*>(data), size_bytes / sizeof(uint4), out);
}

void EnqueueNothing(cudaStream_t stream) { DoNothing<<<1, 32, 0, stream>>>(); }

}  // namespace convene::hardware
