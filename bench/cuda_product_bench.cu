// Checks and times the products of NVIDIA GPUs (kernels/cuda/product.h) without the rest of the
// engine: cuda_product_bench [--check] [--time]. Not a unit test: it needs a Hopper GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/product.h"

namespace convene::kernels::cuda {

namespace {

constexpr int64_t kArenaBytes = int64_t{6} << 30;  // random bf16, from which weights are taken
constexpr int64_t kXBytes = int64_t{512} << 20;
constexpr int64_t kOutBytes = int64_t{1} << 30;
constexpr int64_t kMoreThanL2 = int64_t{256} << 20;
constexpr double kPatience = 10;  // seconds

cudaStream_t stream = nullptr;

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(error));
  std::fflush(stdout);
  std::_Exit(4);
}

// Waits for the stream, but not for ever: a kernel that hangs must not eat the machine's time.
void Finish(const std::string& what) {
  Check(cudaGetLastError(), what.c_str());
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) Check(state, what.c_str());
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (waited.count() > kPatience) {
      std::printf("FAILED: hangs: %s\n", what.c_str());
      std::fflush(stdout);
      std::_Exit(3);
    }
    if (waited.count() > 0.001) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

template <typename T>
T* Allocate(int64_t bytes) {
  void* data = nullptr;
  Check(cudaMalloc(&data, bytes), "cudaMalloc");
  return static_cast<T*>(data);
}

__device__ uint32_t Mix(uint64_t seed) {
  seed = (seed ^ seed >> 33) * 0xff51afd7ed558ccdULL;
  seed = (seed ^ seed >> 33) * 0xc4ceb9fe1a85ec53ULL;
  return static_cast<uint32_t>(seed ^ seed >> 33);
}

__device__ Bf16 RandomBf16(uint64_t seed, float range) {
  const float value = (static_cast<float>(Mix(seed)) * 0x1p-31f - 1.0f) * range;
  return static_cast<Bf16>(__float_as_uint(value) >> 16);
}

__global__ void FillRandom(Bf16* data, int64_t size, float range, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    data[i] = RandomBf16(seed + i, range);
  }
}

// Columns beyond `cols` become NaN: nobody may read them.
__global__ void PoisonColumns(Bf16* data, int64_t rows, int cols, int64_t stride) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * stride; i += step) {
    if (i % stride >= cols) data[i] = 0x7fc0;
  }
}

__global__ void ReadAll(const uint4* data, int64_t size, uint32_t* sums) {
  uint32_t sum = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * step < size; i += 4 * step) {
    const uint4 a = data[i], b = data[i + step], c = data[i + 2 * step], d = data[i + 3 * step];
    sum += (a.x ^ a.y ^ a.z ^ a.w) + (b.x ^ b.y ^ b.z ^ b.w) + (c.x ^ c.y ^ c.z ^ c.w) +
           (d.x ^ d.y ^ d.z ^ d.w);
  }
  if (sum == 0x12345678) *sums = sum;
}

struct Memory {
  Bf16* arena = Allocate<Bf16>(kArenaBytes);
  Bf16* x = Allocate<Bf16>(kXBytes);
  std::byte* out = Allocate<std::byte>(kOutBytes);
  std::byte* expected = Allocate<std::byte>(kOutBytes / 4);
  float* bias = Allocate<float>(16 << 20);
  int32_t* first_row = Allocate<int32_t>(4096);
};

// ---- Checks.

int failures = 0;

struct Case {
  std::string name;
  Product product;
  std::vector<int32_t> first_row;  // empty: dense
  int64_t out_elements = 0;
  int64_t ElementBytes() const { return MakesActivations(product.epilogue) ? 2 : 4; }
};

const char* NameOf(Epilogue epilogue) {
  constexpr const char* kNames[] = {"store", "add", "relu", "silu", "clamped"};
  return kNames[static_cast<int>(epilogue)];
}

int Pick(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

std::vector<int32_t> RandomGroups(std::mt19937& random, int count) {
  std::vector<int32_t> first_row = {0};
  const int kind = Pick(random, 0, 3);
  const int favourite = Pick(random, 0, count - 1);
  for (int i = 0; i < count; ++i) {
    int rows = 0;
    if (kind == 0) rows = Pick(random, 0, 2);
    if (kind == 1) rows = Pick(random, 0, 2) == 0 ? Pick(random, 1, 70) : 0;
    if (kind == 2) rows = i == favourite ? Pick(random, 1, 600) : 0;
    if (kind == 3) rows = Pick(random, 0, 300);
    if (first_row.back() + rows > 1500) rows = 0;
    first_row.push_back(first_row.back() + rows);
  }
  if (first_row.back() == 0) {
    for (int i = favourite + 1; i <= count; ++i) first_row[i] = 1;
  }
  return first_row;
}

Case RandomCase(std::mt19937& random, const Memory& memory, int index) {
  constexpr int kCols[] = {24, 64, 72, 128, 200, 256, 333, 704, 1000, 1536, 2048};
  Case c;
  Product& product = c.product;
  WeightMatrices& weights = product.weights;
  const bool is_dense = Pick(random, 0, 2) == 0;
  weights.count = is_dense                  ? 1
                  : Pick(random, 0, 9) == 0 ? Pick(random, 200, 512)
                                            : Pick(random, 1, 64);
  weights.rows = 64 * Pick(random, 1, weights.count > 64 ? 3 : 22);
  weights.cols = kCols[Pick(random, 0, weights.count > 64 ? 5 : 10)];
  weights.row_stride = (weights.cols + 63) / 64 * 64;
  weights.matrix_stride = weights.rows * weights.row_stride;
  // The last cases have matrices whose distance is no multiple of a row.
  const int gap = index < 130 ? Pick(random, 0, 1) : Pick(random, 0, 2);
  if (gap == 1) weights.matrix_stride += weights.row_stride * Pick(random, 1, 3);
  if (gap == 2) weights.matrix_stride += 64 * Pick(random, 1, 3);
  weights.data = memory.arena;
  if (!is_dense) {
    c.first_row = RandomGroups(random, weights.count);
    product.first_row = memory.first_row;
    product.num_rows = c.first_row.back();
  } else {
    product.num_rows = Pick(random, 0, 3) == 0 ? Pick(random, 1, 700) : Pick(random, 1, 80);
  }
  product.x = memory.x;
  product.x_stride = weights.row_stride + 64 * Pick(random, 0, 1);
  if (Pick(random, 0, 1) == 1) product.bias = memory.bias;
  product.epilogue = static_cast<Epilogue>(Pick(random, 0, 4));
  product.parameters = {.scale = 0.75f, .limit = 0.6f, .alpha = 1.702f};
  const int most = IsGated(product.epilogue) ? weights.rows / 2 : weights.rows;
  product.columns = Pick(random, 0, 1) == 0 ? most : Pick(random, 1, most);
  product.out_stride = Pick(random, 0, 2) == 0 ? product.columns + Pick(random, 0, 5)
                                               : (product.columns + 7) / 8 * 8 + 8;
  product.out = memory.out;
  c.out_elements = product.out_stride * (product.num_rows + 2);
  c.name = std::to_string(index) + (is_dense ? " dense" : " grouped") + " E" +
           std::to_string(weights.count) + " N" + std::to_string(weights.rows) + " K" +
           std::to_string(weights.cols) + " rows " + std::to_string(product.num_rows) + " " +
           NameOf(product.epilogue) + " columns " + std::to_string(product.columns) + " stride " +
           std::to_string(product.out_stride) + (product.bias != nullptr ? " bias" : "");
  return c;
}

std::string NameOf(const ProductForm& form) {
  return " [few " + std::to_string(form.few_rows) + " tokens " + std::to_string(form.most_tokens) +
         " split " + std::to_string(form.split) + " multicast " + std::to_string(form.multicast) +
         "]";
}

void FillInputs(const Case& c, const Memory& memory, uint64_t seed) {
  const Product& product = c.product;
  const WeightMatrices& weights = product.weights;
  const float range = 2.0f / std::sqrt(static_cast<float>(weights.cols));
  const int64_t size = weights.matrix_stride * weights.count;
  FillRandom<<<1024, 256, 0, stream>>>(memory.arena, size, range, seed);
  PoisonColumns<<<1024, 256, 0, stream>>>(memory.arena, size / weights.row_stride, weights.cols,
                                          weights.row_stride);
  // Where matrices do not lie at multiples of the stride, the columns to poison differ.
  if (weights.matrix_stride % weights.row_stride != 0) {
    FillRandom<<<1024, 256, 0, stream>>>(memory.arena, size, range, seed);
  }
  const int64_t x_size = product.x_stride * product.num_rows;
  FillRandom<<<1024, 256, 0, stream>>>(memory.x, x_size, 1.0f, seed ^ 0x5555);
  PoisonColumns<<<1024, 256, 0, stream>>>(memory.x, product.num_rows, weights.cols,
                                          product.x_stride);
  Check(cudaMemsetAsync(memory.x + x_size, 0xff, product.x_stride * 256 * 2, stream), "poison");
  if (!c.first_row.empty()) {
    Check(cudaMemcpyAsync(memory.first_row, c.first_row.data(), c.first_row.size() * 4,
                          cudaMemcpyHostToDevice, stream),
          "groups");
  }
}

float ValueAt(const std::vector<std::byte>& bytes, int64_t index, int64_t element_bytes) {
  uint32_t bits = 0;
  std::memcpy(&bits, bytes.data() + index * element_bytes, element_bytes);
  if (element_bytes == 2) bits <<= 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

std::vector<std::byte> Fetch(const void* from, int64_t bytes, const std::string& what) {
  std::vector<std::byte> host(bytes);
  Finish(what);
  Check(cudaMemcpy(host.data(), from, bytes, cudaMemcpyDeviceToHost), "fetch");
  return host;
}

// What outputs are before: numbers to add to, or NaN.
void Poison(const Case& c, void* out) {
  const int64_t bytes = c.out_elements * c.ElementBytes();
  if (c.product.epilogue == Epilogue::kAdd) {
    FillRandom<<<256, 256, 0, stream>>>(static_cast<Bf16*>(out), bytes / 2, 1.0f, 77);
  } else {
    Check(cudaMemsetAsync(out, 0xff, bytes, stream), "poison");
  }
}

std::vector<std::byte> Run(const Case& c, const ProductForm& form, bool keep_one_chain,
                           const std::string& what) {
  Poison(c, c.product.out);
  Product product = c.product;
  product.form = form;
  product.keep_one_chain = keep_one_chain;
  Multiply(product, stream);
  return Fetch(product.out, c.out_elements * c.ElementBytes(), what);
}

void Compare(const Case& c, const std::vector<std::byte>& before,
             const std::vector<std::byte>& expected, const std::vector<std::byte>& got,
             const std::string& name) {
  const Product& product = c.product;
  const int64_t size = c.ElementBytes();
  const bool is_bf16 = size == 2;
  double most = 0;
  int64_t wrong = 0, touched = 0, first_wrong = -1;
  for (int64_t i = 0; i < c.out_elements; ++i) {
    if (i / product.out_stride >= product.num_rows || i % product.out_stride >= product.columns) {
      if (std::memcmp(&got[i * size], &before[i * size], size) != 0) ++touched;
      continue;
    }
    const double want = ValueAt(expected, i, size);
    const double error = std::abs(ValueAt(got, i, size) - want);
    const double bound = is_bf16 ? 2e-3 + 0.01 * std::abs(want) : 1e-4 + 1e-4 * std::abs(want);
    if (!(error <= bound)) {
      ++wrong;
      if (first_wrong < 0) first_wrong = i;
    }
    if (!(error <= most)) most = error;
  }
  if (wrong == 0 && touched == 0) return;
  ++failures;
  std::printf("FAILED: %s: %lld wrong (first row %lld column %lld), %lld touched, error %g\n",
              name.c_str(), static_cast<long long>(wrong),
              static_cast<long long>(first_wrong / product.out_stride),
              static_cast<long long>(first_wrong % product.out_stride),
              static_cast<long long>(touched), most);
  std::fflush(stdout);
}

// Forms that a case can take besides the chosen one.
std::vector<ProductForm> OtherForms(std::mt19937& random, const Case& c) {
  std::vector<ProductForm> forms = {
      {.few_rows = 0, .multicast = 0},
      {.few_rows = 0, .most_tokens = 16 * Pick(random, 1, 16), .multicast = 1},
      {.few_rows = 1, .most_tokens = 8 * Pick(random, 1, 8)}};
  if (c.first_row.empty()) {
    forms.push_back({.few_rows = 1, .most_tokens = 64, .split = 1 << Pick(random, 1, 3)});
  }
  return forms;
}

// Rows alone, by the forms that few rows take, give the bits that they have in company.
void CheckCompany(std::mt19937& random, const Case& c, const std::vector<std::byte>& together,
                  int* compared) {
  const int64_t size = c.ElementBytes();
  for (int i = 0; i < 3; ++i) {
    const int row = Pick(random, 0, c.product.num_rows - 1);
    int matrix = 0;
    if (!c.first_row.empty()) {
      matrix = static_cast<int>(std::upper_bound(c.first_row.begin(), c.first_row.end(), row) -
                                c.first_row.begin() - 1);
    }
    Case alone = c;
    Product& product = alone.product;
    product.first_row = nullptr;
    product.weights.count = 1;
    product.weights.data += matrix * product.weights.matrix_stride;
    if (product.bias != nullptr) product.bias += matrix * product.weights.rows;
    product.x += row * product.x_stride;
    product.num_rows = 1;
    product.out = static_cast<std::byte*>(product.out) + row * product.out_stride * size;
    alone.out_elements = product.out_stride;
    const std::string name = c.name + " row " + std::to_string(row) + " alone";
    const std::vector<std::byte> got = Run(alone, {}, true, name);
    ++*compared;
    // The values to add to differ, so that rows alone of kAdd cannot be compared.
    if (c.product.epilogue == Epilogue::kAdd) continue;
    if (std::memcmp(got.data(), together.data() + row * product.out_stride * size,
                    product.columns * size) != 0) {
      ++failures;
      std::printf("FAILED: %s: other bits\n", name.c_str());
    }
  }
}

void CheckAll(const Memory& memory) {
  std::mt19937 random(1);
  FillRandom<<<64, 256, 0, stream>>>(reinterpret_cast<Bf16*>(memory.bias), 8 << 20, 0.5f, 5);
  int checked = 0, compared = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int index = 0; index < 150; ++index) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (taken.count() > 15) break;
    const Case c = RandomCase(random, memory, index);
    FillInputs(c, memory, 1000 + index);
    Product plain = c.product;
    plain.out = memory.expected;
    Poison(c, memory.expected);
    const int64_t bytes = c.out_elements * c.ElementBytes();
    const std::vector<std::byte> before = Fetch(memory.expected, bytes, c.name + " poison");
    MultiplyPlainly(plain, stream);
    const std::vector<std::byte> expected = Fetch(memory.expected, bytes, c.name + " plainly");
    const std::vector<std::byte> chosen = Run(c, {}, false, c.name);
    Compare(c, before, expected, chosen, c.name);
    ++checked;
    const std::vector<std::byte> chain = Run(c, {}, true, c.name + " one chain");
    for (const ProductForm& form : OtherForms(random, c)) {
      const std::string name = c.name + NameOf(form);
      const std::vector<std::byte> got = Run(c, form, true, name);
      Compare(c, before, expected, got, name);
      ++checked;
      if (form.split <= 1 && got != chain) {
        ++failures;
        std::printf("FAILED: %s: other bits than the chosen form\n", name.c_str());
      }
    }
    CheckCompany(random, c, chain, &compared);
    std::fflush(stdout);
    if (failures > 40) break;
  }
  std::printf("checked %d products and %d rows alone: %d failures\n", checked, compared, failures);
  std::fflush(stdout);
}

// ---- Times.

double MedianMicroseconds(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

float Elapsed(cudaEvent_t from, cudaEvent_t to) {
  float milliseconds = 0;
  Check(cudaEventElapsedTime(&milliseconds, from, to), "elapsed");
  return milliseconds * 1000;
}

// Of one call of `enqueue(i)`, of which several in a graph are timed together, so that the time of
// the host is not in it.
template <typename Enqueue>
double Time(const Enqueue& enqueue, const std::string& what, int samples = 20) {
  cudaEvent_t from, to;
  Check(cudaEventCreate(&from), "event");
  Check(cudaEventCreate(&to), "event");
  enqueue(0);
  Finish(what);
  Check(cudaEventRecord(from, stream), "record");
  enqueue(1);
  Check(cudaEventRecord(to, stream), "record");
  Finish(what);
  const int calls = std::clamp(static_cast<int>(500 / Elapsed(from, to)), 1, 20);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) enqueue(i);
  Check(cudaStreamEndCapture(stream, &graph), "capture");
  Check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  std::vector<double> times;
  Check(cudaGraphLaunch(exec, stream), "graph");
  Finish(what);
  for (int i = 0; i < samples; ++i) {
    Check(cudaEventRecord(from, stream), "record");
    Check(cudaGraphLaunch(exec, stream), "graph");
    Check(cudaEventRecord(to, stream), "record");
    Finish(what);
    times.push_back(Elapsed(from, to) / calls);
  }
  Check(cudaGraphExecDestroy(exec), "destroy");
  Check(cudaGraphDestroy(graph), "destroy");
  Check(cudaEventDestroy(from), "destroy");
  Check(cudaEventDestroy(to), "destroy");
  return MedianMicroseconds(times);
}

double read_rate = 0;  // GB/s

void TimeMemory(const Memory& memory) {
  constexpr int64_t kBytes = int64_t{4} << 30;
  const double read = Time(
      [&](int) {
        ReadAll<<<132 * 8, 512, 0, stream>>>(reinterpret_cast<const uint4*>(memory.arena),
                                             kBytes / 16, reinterpret_cast<uint32_t*>(memory.out));
      },
      "read", 10);
  const double copy = Time(
      [&](int) {
        Check(cudaMemcpyAsync(memory.arena, memory.arena + (kBytes / 4), kBytes / 2,
                              cudaMemcpyDeviceToDevice, stream),
              "copy");
      },
      "copy", 10);
  read_rate = kBytes / read * 1e-3;
  std::printf("read %.0f GB/s, copy %.0f GB/s (read and written)\n", read_rate,
              kBytes / copy * 1e-3);
}

struct Shape {
  std::string name;
  int count = 1;
  int rows = 0;
  int cols = 0;
  Epilogue epilogue = Epilogue::kStore;
};

// first_row of a router that chooses top_k of the experts at random.
std::vector<int32_t> RoutedGroups(int experts, int top_k, int tokens) {
  std::mt19937 random(7);
  std::vector<int32_t> first_row(experts + 1, 0);
  std::vector<int> all(experts);
  for (int i = 0; i < experts; ++i) all[i] = i;
  for (int token = 0; token < tokens; ++token) {
    for (int i = 0; i < top_k; ++i) {
      std::swap(all[i], all[Pick(random, i, experts - 1)]);
      ++first_row[all[i] + 1];
    }
  }
  for (int i = 0; i < experts; ++i) first_row[i + 1] += first_row[i];
  return first_row;
}

// Prints a line, returns microseconds.
double TimeProduct(const Memory& memory, const Shape& shape, int num_rows,
                   const std::vector<int32_t>& first_row, const ProductForm& form = {},
                   bool keep_one_chain = false) {
  Product product;
  WeightMatrices& weights = product.weights;
  weights.rows = shape.rows;
  weights.cols = shape.cols;
  weights.row_stride = (shape.cols + 63) / 64 * 64;
  weights.matrix_stride = weights.rows * weights.row_stride;
  weights.count = shape.count;
  int touched = 1;
  if (!first_row.empty()) {
    product.first_row = memory.first_row;
    touched = 0;
    for (int i = 0; i < shape.count; ++i) touched += first_row[i + 1] > first_row[i] ? 1 : 0;
    Check(cudaMemcpyAsync(memory.first_row, first_row.data(), first_row.size() * 4,
                          cudaMemcpyHostToDevice, stream),
          "groups");
  }
  product.num_rows = num_rows;
  product.x = memory.x;
  product.x_stride = weights.row_stride;
  product.epilogue = shape.epilogue;
  product.columns = IsGated(shape.epilogue) ? shape.rows / 2 : shape.rows;
  product.out = memory.out;
  product.out_stride = product.columns;
  product.form = form;
  product.keep_one_chain = keep_one_chain;
  const int64_t all_bytes = weights.matrix_stride * weights.count * 2;
  const int64_t touched_bytes = weights.matrix_stride * touched * 2;
  const int64_t copies =
      std::clamp<int64_t>(kMoreThanL2 / touched_bytes + 1, 1, kArenaBytes / all_bytes);
  const std::string name = shape.name + " rows " + std::to_string(num_rows);
  const double us = Time(
      [&](int i) {
        product.weights.data = memory.arena + i % copies * all_bytes / 2;
        Multiply(product, stream);
      },
      name);
  const double flops = 2.0 * num_rows * shape.rows * shape.cols;
  const double rate = touched_bytes / us * 1e-3;
  std::string how = keep_one_chain ? " one chain" : "";
  if (form.few_rows >= 0 || form.most_tokens > 0 || form.split > 0 || form.multicast >= 0) {
    how += NameOf(form);
  }
  std::printf("%-28s rows %6d %9.1f us %7.1f TFLOP/s %7.1f GB/s %5.1f %%%s\n", shape.name.c_str(),
              num_rows, us, flops / us * 1e-6, rate, 100 * rate / read_rate, how.c_str());
  std::fflush(stdout);
  return us;
}

void TimeDense(const Memory& memory) {
  constexpr int kShapes[][2] = {{5120, 2048}, {2048, 4096}, {4096, 4096}, {151936, 2048}};
  for (const auto& [rows, cols] : kShapes) {
    const Shape shape = {.name = "dense " + std::to_string(rows) + " x " + std::to_string(cols),
                         .rows = rows,
                         .cols = cols};
    for (const int num_rows : {1, 8, 64, 128, 512, 4096}) {
      if (rows > 100000 && num_rows > 64) continue;
      TimeProduct(memory, shape, num_rows, {});
      if (num_rows <= 64 && rows <= 5120) TimeProduct(memory, shape, num_rows, {}, {}, true);
      if (num_rows == 128) TimeProduct(memory, shape, num_rows, {}, {.few_rows = 1});
      if (num_rows == 512) {
        for (const int tokens : {64, 128, 256}) {
          TimeProduct(memory, shape, num_rows, {}, {.most_tokens = tokens, .multicast = 0});
        }
      }
      if (num_rows == 4096) {
        for (const int multicast : {0, 1}) {
          TimeProduct(memory, shape, num_rows, {}, {.multicast = multicast});
        }
      }
    }
  }
}

struct Experts {
  const char* name;
  int experts;
  int intermediate;
  int hidden;
  int top_k;
};

void TimeGrouped(const Memory& memory) {
  constexpr Experts kModels[] = {{"gemma4-26b", 128, 704, 2816, 8},
                                 {"olmoe", 64, 1024, 2048, 8},
                                 {"qwen3-30b", 128, 768, 2048, 8},
                                 {"mixtral", 8, 14336, 4096, 2}};
  for (const Experts& model : kModels) {
    const Shape up = {.name = std::string(model.name) + " gate+up",
                      .count = model.experts,
                      .rows = GatedRows(model.intermediate),
                      .cols = model.hidden,
                      .epilogue = Epilogue::kSiluMul};
    const Shape down = {.name = std::string(model.name) + " down",
                        .count = model.experts,
                        .rows = model.hidden,
                        .cols = model.intermediate};
    for (const int tokens : {1, 16, 64, 128, 512, 4096}) {
      const int num_rows = tokens * model.top_k;
      const std::vector<int32_t> groups = RoutedGroups(model.experts, model.top_k, tokens);
      const double us =
          TimeProduct(memory, up, num_rows, groups) + TimeProduct(memory, down, num_rows, groups);
      std::printf("%-28s tokens %4d %9.1f us %7.1f TFLOP/s\n", model.name, tokens, us,
                  6.0 * num_rows * model.intermediate * model.hidden / us * 1e-6);
      if (tokens == 4096) {
        for (const int multicast : {0, 1}) {
          TimeProduct(memory, up, num_rows, groups, {.multicast = multicast});
          TimeProduct(memory, down, num_rows, groups, {.multicast = multicast});
        }
      }
      if (tokens == 128 || tokens == 512) {
        for (const ProductForm& form :
             {ProductForm{.few_rows = 0}, ProductForm{.few_rows = 1, .most_tokens = 32},
              ProductForm{.few_rows = 1, .most_tokens = 64}}) {
          TimeProduct(memory, up, num_rows, groups, form);
        }
      }
    }
  }
}

void TimeHost(const Memory& memory) {
  Product product;
  product.weights = {
      .data = memory.arena, .rows = 64, .cols = 64, .row_stride = 64, .matrix_stride = 4096};
  product.x = memory.x;
  product.x_stride = 64;
  product.num_rows = 1;
  product.out = memory.out;
  product.out_stride = product.columns = 64;
  constexpr int kCalls = 500;
  Finish("host");
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) Multiply(product, stream);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  Finish("host");
  std::printf("a call of Multiply takes the host %.2f us\n", taken.count() / kCalls * 1e6);
}

int Main(int argc, char** argv) {
  bool checks = argc == 1, times = argc == 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--check") == 0) checks = true;
    if (std::strcmp(argv[i], "--time") == 0) times = true;
  }
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0), "properties");
  std::printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const Memory memory;
  if (checks) CheckAll(memory);
  if (times) {
    FillRandom<<<2048, 256, 0, stream>>>(memory.arena, kArenaBytes / 2, 0.05f, 1);
    FillRandom<<<2048, 256, 0, stream>>>(memory.x, kXBytes / 2, 1.0f, 2);
    Finish("fill");
    TimeMemory(memory);
    TimeHost(memory);
    TimeDense(memory);
    TimeGrouped(memory);
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace

}  // namespace convene::kernels::cuda

int main(int argc, char** argv) { return convene::kernels::cuda::Main(argc, argv); }
