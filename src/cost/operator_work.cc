#include "cost/operator_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/quote.h"
#include "cost/json_reader.h"

namespace convene::cost {
namespace {

// As tables name them. wo: only the weights are integers; sq: activations, too; MXFP4 has a scale
// of one byte for 32 weights.
struct NamedFormat {
  const char* in_tables;
  const char* name;
  const char* compute;
  double weight_bytes;
  double activation_bytes;
};
constexpr NamedFormat kFormats[] = {
    {"bfloat16", "bf16", "bf16", 2, 2},   {"float16", "fp16", "fp16", 2, 2},
    {"fp8", "fp8", "fp8", 1, 1},          {"fp8_block", "fp8_block", "fp8", 1, 1},
    {"int8_wo", "int8_wo", "bf16", 1, 2}, {"int4_wo", "int4_wo", "bf16", 0.5, 2},
    {"sq", "int8", "int8", 1, 1},         {"w4a16_mxfp4", "w4a16_mxfp4", "bf16", 0.53125, 2},
};

constexpr double kOutputBytes = 2;  // per element that a product writes

double Roofline(double flops, double bytes, const ProductFormat& format,
                const DeviceFigures& device) {
  return std::max(flops / device.flops.at(format.compute), bytes / device.memory_bytes_per_second);
}

// Of `num_experts` of which each token visits `top_k`, how many some token visits.
double ExpertsVisited(double num_experts, double top_k, double num_tokens) {
  return num_experts * (1 - std::pow(1 - std::min(1.0, top_k / num_experts), num_tokens));
}

}  // namespace

Result<ProductFormat> ProductFormatOf(std::string_view name) {
  std::string known;
  for (const NamedFormat& format : kFormats) {
    if (name == format.in_tables || name == format.name) {
      return ProductFormat{format.name, format.compute, format.weight_bytes,
                           format.activation_bytes};
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", format.in_tables);
  }
  return Error{fmt::format("the format {} is not known; known are {}", Quote(name), known)};
}

Status CheckFigures(const DeviceFigures& device, const ProductFormat& format) {
  const auto found = device.flops.find(format.compute);
  if (found == device.flops.end() || !IsRate(found->second)) {
    return Error{fmt::format("{} has no rate of products in {}, which {} needs", Quote(device.name),
                             format.compute, format.name)};
  }
  if (!IsRate(device.memory_bytes_per_second)) {
    return Error{fmt::format("{} has no memory bandwidth", Quote(device.name))};
  }
  return {};
}

std::vector<std::string> ProductFeatures() { return {"rows", "columns", "inner"}; }

OperatorWork WorkOf(const ProductShape& shape, const ProductFormat& format,
                    const DeviceFigures& device) {
  const double flops = 2 * shape.rows * shape.columns * shape.inner;
  const double bytes = shape.columns * shape.inner * format.weight_bytes +
                       shape.rows * shape.inner * format.activation_bytes +
                       shape.rows * shape.columns * kOutputBytes;
  return {{shape.rows, shape.columns, shape.inner}, Roofline(flops, bytes, format, device)};
}

std::vector<std::string> ExpertsFeatures() {
  return {"tokens",  "hidden",       "intermediate_slice", "top_k",
          "experts", "rank_experts", "rows_per_expert",    "skew"};
}

OperatorWork WorkOf(const ExpertsShape& shape, const ProductFormat& format,
                    const DeviceFigures& device) {
  const double slice = std::max(1.0, shape.intermediate / shape.tensor_degree);
  const double rank_experts = std::max(1.0, shape.num_experts / shape.expert_degree);
  const double rows = shape.num_tokens * shape.top_k / shape.expert_degree;
  const double visited =
      ExpertsVisited(shape.num_experts, shape.top_k, shape.num_tokens) / shape.expert_degree;
  const double flops = 6 * rows * shape.hidden * slice;
  // Rows pass the memory once in and once out; what lies between gate, up and down stays close.
  const double bytes = 3 * visited * shape.hidden * slice * format.weight_bytes +
                       rows * shape.hidden * (format.activation_bytes + kOutputBytes);
  return {{shape.num_tokens, shape.hidden, slice, shape.top_k, shape.num_experts, rank_experts,
           rows / rank_experts, shape.skew},
          Roofline(flops, bytes, format, device)};
}

std::vector<std::string> CollectiveFeatures() { return {"bytes", "ranks"}; }

OperatorWork WorkOf(const CollectiveShape& shape, double link_bytes_per_second) {
  const double sent = shape.passes * shape.bytes * (shape.num_ranks - 1) / shape.num_ranks;
  return {{shape.bytes, shape.num_ranks}, sent / link_bytes_per_second};
}

std::vector<std::string> DispatchFeatures() {
  return {"tokens", "hidden", "top_k", "experts", "multiprocessors"};
}

OperatorWork WorkOf(const DispatchShape& shape, double num_ranks, double element_bytes,
                    double link_bytes_per_second) {
  const double visited = ExpertsVisited(num_ranks, 1, shape.top_k);
  const double sent =
      shape.num_tokens * shape.hidden * element_bytes * visited * (num_ranks - 1) / num_ranks;
  return {{shape.num_tokens, shape.hidden, shape.top_k, shape.num_experts, shape.multiprocessors},
          sent / link_bytes_per_second};
}

}  // namespace convene::cost
