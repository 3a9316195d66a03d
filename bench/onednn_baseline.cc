#include "bench/onednn_baseline.h"

#include <fmt/format.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <dnnl.hpp>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "hardware/huge_buffer.h"

namespace convene::bench {
namespace {

using DataType = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;
using hardware::HugeBuffer;

constexpr size_t kAlignment = 4096;  // of every expert's weights and rows

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// One of the two products: (rows, in) times (in, out).
struct Product {
  dnnl::memory::desc source, plain_weights, out;
  dnnl::matmul::primitive_desc chosen;
  dnnl::matmul primitive;
};

Product MakeProduct(const dnnl::engine& engine, kernels::ActivationFormat format, int rows, int in,
                    int out, bool is_last) {
  const bool is_int8 = format == kernels::ActivationFormat::kInt8;
  const DataType row_type = is_int8 ? DataType::u8 : DataType::bf16;
  const DataType weight_type = is_int8 ? DataType::s8 : DataType::bf16;
  Product product{.source = {{rows, in}, row_type, Tag::ab},
                  .plain_weights = {{in, out}, weight_type, Tag::ab},
                  .out = {{rows, out}, is_last ? DataType::f32 : row_type, Tag::ab},
                  .chosen = {},
                  .primitive = {}};
  dnnl::primitive_attr attributes;
  if (is_int8) attributes.set_output_scales(0, {1.0F / 4096});
  const dnnl::memory::desc any_weights({in, out}, weight_type, Tag::any);
  product.chosen =
      dnnl::matmul::primitive_desc({product.source, any_weights, product.out}, attributes, engine);
  product.primitive = dnnl::matmul(product.chosen);
  return product;
}

// Random weights in the order that the primitive asked for.
void PackWeights(const Product& product, const dnnl::engine& engine, dnnl::stream& stream,
                 std::byte* packed) {
  dnnl::memory plain(product.plain_weights, engine);
  auto* bytes = static_cast<uint8_t*>(plain.get_data_handle());
  uint32_t state = 1;
  for (size_t i = 0; i < product.plain_weights.get_size(); ++i) {
    state = state * 1664525 + 1013904223;
    bytes[i] = static_cast<uint8_t>(state >> 24) & 0xbf;  // as bf16: below two, never infinite
  }
  dnnl::memory target(product.chosen.weights_desc(), engine, packed);
  dnnl::reorder(plain, target).execute(stream, plain, target);
  stream.wait();
}

// A product with its operands, ready to execute.
struct Call {
  const dnnl::matmul* primitive;
  std::unordered_map<int, dnnl::memory> arguments;
};

Call MakeCall(const Product& product, const dnnl::engine& engine, std::byte* source,
              std::byte* weights, std::byte* out) {
  return {.primitive = &product.primitive,
          .arguments = {{DNNL_ARG_SRC, {product.source, engine, source}},
                        {DNNL_ARG_WEIGHTS, {product.chosen.weights_desc(), engine, weights}},
                        {DNNL_ARG_DST, {product.out, engine, out}}}};
}

double MedianPassSeconds(const std::vector<Call>& calls, dnnl::stream& stream, double budget_s) {
  std::vector<double> passes;
  const double begin = Seconds();
  for (int pass = 0; pass < 4 || Seconds() - begin < budget_s; ++pass) {
    const double start = Seconds();
    for (const Call& call : calls) call.primitive->execute(stream, call.arguments);
    stream.wait();
    if (pass > 0) passes.push_back(Seconds() - start);  // the first one takes the outputs' pages
  }
  std::sort(passes.begin(), passes.end());
  return passes[passes.size() / 2];
}

// OpenMP keeps its threads for the regions that follow, among them oneDNN's.
void PinOpenMpThreads(const std::vector<int>& cpus) {
  omp_set_dynamic(0);
  omp_set_num_threads(static_cast<int>(cpus.size()));
#pragma omp parallel
  {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(cpus[omp_get_thread_num()], &mask);
    // Where the system refuses, the thread runs unpinned: slower at worst.
    (void)sched_setaffinity(0, sizeof(mask), &mask);
  }
}

Result<OneDnnRate> Measure(kernels::ActivationFormat format, const ExpertShape& shape,
                           double budget_s) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const Product gate_up = MakeProduct(engine, format, shape.rows_per_expert, shape.hidden,
                                      2 * shape.intermediate, /*is_last=*/false);
  const Product down = MakeProduct(engine, format, shape.rows_per_expert, shape.intermediate,
                                   shape.hidden, /*is_last=*/true);

  const size_t gate_up_bytes = Aligned(gate_up.chosen.weights_desc().get_size());
  const size_t weight_bytes = gate_up_bytes + Aligned(down.chosen.weights_desc().get_size());
  const size_t source_bytes = Aligned(gate_up.source.get_size());
  const size_t middle_bytes = Aligned(down.source.get_size());
  const size_t gate_up_out_bytes = Aligned(gate_up.out.get_size());
  const size_t row_bytes =
      source_bytes + middle_bytes + gate_up_out_bytes + Aligned(down.out.get_size());
  const Result<HugeBuffer> weights =
      HugeBuffer::Allocate(weight_bytes * shape.num_experts, "oneDNN's weights");
  if (!weights) return weights.error();
  const Result<HugeBuffer> rows =
      HugeBuffer::Allocate(row_bytes * shape.num_experts, "oneDNN's rows");
  if (!rows) return rows.error();
  std::memset(rows->data(), 0x11, rows->size_bytes());

  std::vector<Call> calls;
  for (int expert = 0; expert < shape.num_experts; ++expert) {
    std::byte* const packed = weights->data() + weight_bytes * expert;
    if (expert == 0) {
      PackWeights(gate_up, engine, stream, packed);
      PackWeights(down, engine, stream, packed + gate_up_bytes);
    } else {
      std::memcpy(packed, weights->data(), weight_bytes);
    }
    std::byte* const source = rows->data() + row_bytes * expert;
    std::byte* const middle = source + source_bytes;
    std::byte* const out = middle + middle_bytes;
    calls.push_back(MakeCall(gate_up, engine, source, packed, out));
    calls.push_back(
        MakeCall(down, engine, middle, packed + gate_up_bytes, out + gate_up_out_bytes));
  }
  const double ops =
      6.0 * shape.hidden * shape.intermediate * shape.rows_per_expert * shape.num_experts;
  return OneDnnRate{.ops_per_s = ops / MedianPassSeconds(calls, stream, budget_s),
                    .implementation = gate_up.chosen.impl_info_str()};
}

}  // namespace

Result<OneDnnRate> MeasureOneDnn(kernels::ActivationFormat format, const ExpertShape& shape,
                                 const std::vector<int>& cpus, double budget_s) {
  CHECK(format != kernels::ActivationFormat::kF32, "only bf16 and int8 are measured");
  CHECK(!cpus.empty() && shape.rows_per_expert > 0 && shape.num_experts > 0);
  if (dnnl_version()->cpu_runtime != DNNL_RUNTIME_OMP) {
    return Error{
        "this oneDNN is not threaded by OpenMP, so its threads cannot be chosen; install "
        "a build with DNNL_CPU_RUNTIME=OMP, as Debian's and Ubuntu's is"};
  }
  std::optional<Result<OneDnnRate>> rate;
  // A thread of its own: its OpenMP threads end with it instead of spinning beside the next
  // measurement, and the caller's mask stays as it is.
  std::thread([&] {
    try {
      PinOpenMpThreads(cpus);
      rate = Measure(format, shape, budget_s);
    } catch (const dnnl::error& error) {
      rate = Error{fmt::format("oneDNN: {}", error.what())};
    }
  }).join();
  return *std::move(rate);
}

}  // namespace convene::bench
