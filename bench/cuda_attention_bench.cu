// Attention on a GPU: first cases against their definition and against themselves, cut and divided
// otherwise; then times of prompts and of generated tokens. Prints a short table; ends with 1 where
// a case fails. A program by itself: nvcc -I src bench/cuda_attention_bench.cu
// src/kernels/cuda/attention.cu src/kernels/cuda/attention_plan.cu
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_case_test.h"

namespace convene::kernels::cuda {
namespace {

AttentionCase CaseOf(int num_heads, int num_kv_heads, int key_dim, int value_dim,
                     int value_in_key = -1) {
  AttentionCase of;
  of.shape.num_heads = num_heads;
  of.shape.num_kv_heads = num_kv_heads;
  of.shape.key_dim = key_dim;
  of.shape.value_dim = value_dim;
  of.shape.value_in_key = value_in_key;
  of.shape.scale = 1 / std::sqrt(static_cast<float>(key_dim));
  return of;
}

// Whether `of` is what it should be, and the same however it is cut.
bool Check(const AttentionCase& of, const char* what) {
  const CaseSequence whole = {.seed = 9, .first = 470, .count = 580};
  double worst = 0;
  const std::vector<CaseSequence> mixed = {{.seed = 1, .first = 0, .count = 70},
                                           {.seed = 2, .first = 500, .count = 33},
                                           {.seed = 3, .first = 190, .count = 3},
                                           {.seed = 4, .first = 1100, .count = 1},
                                           {.seed = 5, .first = 0, .count = 1}};
  const auto outputs = RunAttention(of, mixed);
  for (size_t i = 0; i < mixed.size(); ++i) {
    worst = std::max(worst, WorstError(of, mixed[i], outputs[i], 11));
  }
  AttentionCase undivided = of;
  undivided.num_multiprocessors = 1;
  const auto alone = RunAttention(undivided, {whole})[0];
  worst = std::max(worst, WorstError(of, whole, alone, 193));
  std::vector<Bf16> chunks;
  int done = whole.first;
  for (const int cut : {471, 480, 512, 700, 1024, 1049, 1050}) {
    const auto of_step = RunAttention(of, {{.seed = 20, .first = 600, .count = 1},
                                           {.seed = 9, .first = done, .count = cut - done},
                                           {.seed = 21, .first = 0, .count = 100}});
    chunks.insert(chunks.end(), of_step[1].begin(), of_step[1].end());
    done = cut;
  }
  int64_t differ = 0;
  for (size_t i = 0; i < alone.size(); ++i) differ += alone[i] != chunks[i] ? 1 : 0;
  const bool good = worst <= 1 && differ == 0 && alone.size() == chunks.size();
  std::printf(
      "%-28s heads %2d/%d of %3d/%3d: error %.2f of what is allowed, %lld of %zu differ%s\n", what,
      of.shape.num_heads, of.shape.num_kv_heads, of.shape.key_dim, of.shape.value_dim, worst,
      static_cast<long long>(differ), alone.size(), good ? "" : "  FAILED");
  return good;
}

bool CheckAll() {
  bool good = Check(CaseOf(8, 2, 128, 128), "prompts and tokens");
  good = Check(CaseOf(4, 4, 64, 64), "prompts and tokens") && good;
  good = Check(CaseOf(6, 2, 96, 96), "prompts and tokens") && good;
  good = Check(CaseOf(10, 2, 80, 80), "prompts and tokens") && good;
  good = Check(CaseOf(4, 2, 192, 128), "prompts and tokens") && good;
  good = Check(CaseOf(4, 1, 256, 256), "prompts and tokens") && good;
  good = Check(CaseOf(4, 2, 32, 32), "prompts and tokens") && good;
  good = Check(CaseOf(4, 2, 12, 12), "prompts and tokens") && good;
  good = Check(CaseOf(4, 2, 10, 6), "prompts and tokens") && good;
  good = Check(CaseOf(4, 1, 576, 512, 64), "values in keys") && good;
  good = Check(CaseOf(20, 1, 288, 256, 32), "values in keys") && good;
  good = Check(CaseOf(4, 1, 40, 32, 8), "values in keys") && good;
  AttentionCase of = CaseOf(8, 2, 128, 128);
  of.sinks = {-2, 0, 1, 2, 3, 4, 8, 30};
  good = Check(of, "sinks") && good;
  of.shape.window = 100;
  good = Check(of, "a window and sinks") && good;
  of.bias_reach = 40;
  good = Check(of, "a window, sinks and biases") && good;
  return good;
}

__global__ void FillWithNoise(Bf16* to, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    const float value = static_cast<float>(x >> 8) / 8388608.0f - 1.0f;
    to[i] = static_cast<Bf16>(__float_as_uint(1.7f * value) >> 16);
  }
}

__global__ void ReadAll(const uint4* from, int64_t count, uint32_t* to) {
  uint32_t sum = 0;
#pragma unroll 8
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint4 x = __ldcs(from + i);
    sum ^= x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum == 0x12345678) *to = sum;
}

template <typename F>
double MicrosecondsOf(int times, const F& run) {
  cudaEvent_t begin;
  cudaEvent_t end;
  CheckCuda(cudaEventCreate(&begin), "event");
  CheckCuda(cudaEventCreate(&end), "event");
  run(0);
  Synchronize();
  double best = 1e30;
  for (int round = 0; round < 3; ++round) {
    CheckCuda(cudaEventRecord(begin), "event");
    for (int i = 0; i < times; ++i) run(i);
    CheckCuda(cudaEventRecord(end), "event");
    Synchronize();
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    best = std::min(best, 1e3 * milliseconds / times);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

struct Bench {
  int num_multiprocessors;
  Bf16* cache;
  int64_t cache_elements;
  double peak_bandwidth;
};

void Time(const Bench& bench, const char* what, const AttentionCase& of,
          std::vector<QueryRows> rows) {
  const AttentionShape& shape = of.shape;
  const int64_t block_elements =
      KvBlockElements(shape.num_kv_heads, shape.key_dim, of.cached_value_dim());
  int num_blocks = 0;
  int num_rows = 0;
  double keys = 0;
  double pairs = 0;
  for (QueryRows& sequence : rows) {
    sequence.first_row = num_rows;
    sequence.first_out_row = num_rows;
    sequence.first_block = num_blocks;
    const int length = sequence.first_position + sequence.num_rows;
    num_rows += sequence.num_rows;
    num_blocks += (length + 63) / 64;
    for (int row = 0; row < sequence.num_rows; ++row) {
      const int seen = sequence.first_position + row + 1;
      pairs += shape.window > 0 ? std::min(seen, shape.window) : seen;
    }
    keys += shape.window > 0 ? std::min(length, shape.window + sequence.num_rows - 1) : length;
  }
  // Layers one after the other, so that the cache of none is still near when its turn comes.
  const int64_t layer_elements = num_blocks * block_elements;
  const int num_layers = static_cast<int>(
      std::clamp<int64_t>(bench.cache_elements / std::max<int64_t>(layer_elements, 1), 1, 16));
  if (layer_elements > bench.cache_elements) {
    std::printf("%-36s needs more memory\n", what);
    return;
  }
  std::vector<int32_t> numbers(static_cast<size_t>(num_blocks));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(3));
  std::vector<const std::byte*> places;
  for (int64_t i = 0; i < int64_t{num_layers} * num_blocks; ++i) {
    places.push_back(reinterpret_cast<const std::byte*>(bench.cache + i * block_elements));
  }
  const auto begin = std::chrono::steady_clock::now();
  AttentionPlan plan = PlanAttention(shape, rows, bench.num_multiprocessors);
  const double plan_microseconds =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();

  const int64_t query_stride = shape.num_heads * shape.key_dim;
  const DeviceArray<Bf16> queries(static_cast<size_t>(num_rows * query_stride));
  FillWithNoise<<<512, 256>>>(queries.data(), static_cast<int64_t>(queries.size()), 77);
  const DeviceArray<Bf16> out(static_cast<size_t>(num_rows * of.out_width()));
  const DeviceArray<int32_t> blocks(numbers);
  const DeviceArray<const std::byte*> kv_blocks(places);
  const DeviceArray<QueryRows> sequences(rows);
  const DeviceArray<AttentionWork> work(plan.work);
  const DeviceArray<AttentionWork> folds(plan.folds);
  const DeviceArray<float> partials(static_cast<size_t>(plan.partial_floats));
  const int times = num_rows > 1000 ? 10 : 48;
  const double microseconds = MicrosecondsOf(times, [&](int i) {
    AttentionInputs in;
    in.work = work.data();
    in.num_work = static_cast<int>(plan.work.size());
    in.folds = folds.data();
    in.num_folds = static_cast<int>(plan.folds.size());
    in.sequences = sequences.data();
    in.blocks = blocks.data();
    in.kv_blocks = kv_blocks.data() + i % num_layers * num_blocks;
    in.queries = queries.data();
    in.query_stride = query_stride;
    in.partials = partials.data();
    in.out = out.data();
    in.out_stride = of.out_width();
    Attend(shape, in, nullptr);
  });
  const double flops = 2.0 * pairs * shape.num_heads * (shape.key_dim + shape.value_dim);
  const double bytes = 2.0 * keys * shape.num_kv_heads * (shape.key_dim + of.cached_value_dim());
  std::printf("%-36s %8.1f us  %6.1f TFLOP/s  %6.0f GB/s (%3.0f %%)  plan %4.0f us, %zu + %zu\n",
              what, microseconds, flops / microseconds * 1e-6, bytes / microseconds * 1e-3,
              100 * bytes / microseconds * 1e-3 / bench.peak_bandwidth, plan_microseconds,
              plan.work.size(), plan.folds.size());
  std::fflush(stdout);
}

QueryRows RowsAt(int first_position, int num_rows) {
  QueryRows rows;
  rows.first_position = first_position;
  rows.num_rows = num_rows;
  return rows;
}

// Around `length`, from half to one and a half of it.
std::vector<QueryRows> Tokens(int num_sequences, int length) {
  std::vector<QueryRows> rows;
  for (int i = 0; i < num_sequences; ++i) {
    const int spread = num_sequences > 1 ? length * i / (num_sequences - 1) : length / 2;
    rows.push_back(RowsAt(length / 2 + spread - 1, 1));
  }
  std::shuffle(rows.begin(), rows.end(), std::mt19937(4));
  return rows;
}

int Run() {
  cudaDeviceProp properties;
  CheckCuda(cudaGetDeviceProperties(&properties, 0), "device");
  std::printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
  const bool good = CheckAll();
  std::fflush(stdout);

  Bench bench = {};
  bench.num_multiprocessors = properties.multiProcessorCount;
  bench.cache_elements = int64_t{1} << 30;
  const DeviceArray<uint32_t> sink(1);
  void* cache = nullptr;
  CheckCuda(cudaMalloc(&cache, static_cast<size_t>(bench.cache_elements) * 2), "cudaMalloc");
  bench.cache = static_cast<Bf16*>(cache);
  FillWithNoise<<<4096, 256>>>(bench.cache, bench.cache_elements, 1);
  const double read = MicrosecondsOf(5, [&](int) {
    ReadAll<<<static_cast<unsigned>(16 * bench.num_multiprocessors), 256>>>(
        reinterpret_cast<const uint4*>(bench.cache), bench.cache_elements / 8, sink.data());
  });
  bench.peak_bandwidth = 2.0 * static_cast<double>(bench.cache_elements) / read * 1e-3;
  std::printf("reading alone: %.0f GB/s\n", bench.peak_bandwidth);

  const AttentionCase few = CaseOf(32, 4, 128, 128);
  const AttentionCase more = CaseOf(32, 8, 128, 128);
  Time(bench, "prompt 2048, 32/4 x 128", few, {RowsAt(0, 2048)});
  Time(bench, "prompt 2048, 32/8 x 128", more, {RowsAt(0, 2048)});
  Time(bench, "prompt 2048, 16/16 x 128", CaseOf(16, 16, 128, 128), {RowsAt(0, 2048)});
  Time(bench, "prompts 4 x 512, 32/8 x 128", more,
       {RowsAt(0, 512), RowsAt(0, 512), RowsAt(0, 512), RowsAt(0, 512)});
  Time(bench, "prompt 8192, 32/8 x 128", more, {RowsAt(0, 8192)});
  Time(bench, "chunk 512 at 8192, 32/8 x 128", more, {RowsAt(8192, 512)});
  Time(bench, "prompt 2048, 32/8 x 64", CaseOf(32, 8, 64, 64), {RowsAt(0, 2048)});
  Time(bench, "prompt 2048, 32/8 x 96", CaseOf(32, 8, 96, 96), {RowsAt(0, 2048)});
  Time(bench, "prompt 2048, 16/8 x 256", CaseOf(16, 8, 256, 256), {RowsAt(0, 2048)});
  Time(bench, "prompt 2048, 16/1 x 576/512", CaseOf(16, 1, 576, 512, 64), {RowsAt(0, 2048)});
  Time(bench, "tokens 64 x 1024, 32/4 x 128", few, Tokens(64, 1024));
  Time(bench, "tokens 64 x 1024, 32/8 x 128", more, Tokens(64, 1024));
  Time(bench, "tokens 64 x 2048, 32/8 x 128", more, Tokens(64, 2048));
  Time(bench, "tokens 64 x 1024, 16/16 x 128", CaseOf(16, 16, 128, 128), Tokens(64, 1024));
  Time(bench, "tokens 256 x 512, 32/4 x 128", few, Tokens(256, 512));
  Time(bench, "tokens 64 x 2048, 32/8 x 64", CaseOf(32, 8, 64, 64), Tokens(64, 2048));
  Time(bench, "tokens 16 x 4096, 32/8 x 128", more, Tokens(16, 4096));
  Time(bench, "token 1 x 1024, 32/8 x 128", more, Tokens(1, 1024));
  Time(bench, "token 1 x 32768, 32/8 x 128", more, Tokens(1, 32768));
  Time(bench, "tokens 64 x 2048, 16/1 x 576/512", CaseOf(16, 1, 576, 512, 64), Tokens(64, 2048));
  std::vector<QueryRows> both = Tokens(63, 1024);
  both.push_back(RowsAt(512, 512));
  Time(bench, "63 tokens and 512 rows, 32/8 x 128", more, both);
  std::printf(good ? "all cases are as they should be\n" : "CASES FAILED\n");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace convene::kernels::cuda

int main() { return convene::kernels::cuda::Run(); }
