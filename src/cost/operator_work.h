// The sizes on which the cost of an operator depends, as models of operators see them: their names
// and values, and the time that the limits of the hardware allow. Who measures an operator, imports
// a table of it or prices a schedule takes them from here, so that all of them mean the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/machine_profile.h"

namespace convene::cost {

struct OperatorWork {
  std::vector<double> features;
  double ideal_seconds = 0;
};

// How a product's operands are stored and computed.
struct ProductFormat {
  std::string name;             // in the names of operators: "bf16", "int4_wo"
  std::string compute;          // whose rate counts: a key of DeviceFigures::flops
  double weight_bytes = 2;      // per weight
  double activation_bytes = 2;  // per element that is read
};

// Those that tables name; "bfloat16" is "bf16". Errors: any other name; the message lists all.
Result<ProductFormat> ProductFormatOf(std::string_view name);

// FLOP/s of the device in the format that a product computes in. Errors: the device's figures have
// none, or no memory bandwidth.
Status CheckFigures(const DeviceFigures& device, const ProductFormat& format);

// (rows, inner) times (inner, columns), the weights being the second.
struct ProductShape {
  double rows = 0;
  double columns = 0;
  double inner = 0;
};
std::vector<std::string> ProductFeatures();
// Precondition, of the next one too: CheckFigures.
OperatorWork WorkOf(const ProductShape& shape, const ProductFormat& format,
                    const DeviceFigures& device);

// The routed experts of a layer on one rank: gate, up and down of all its experts.
struct ExpertsShape {
  double num_tokens = 0;  // of all ranks among which experts are divided
  double hidden = 0;
  double intermediate = 0;  // of a whole expert
  double top_k = 1;
  double num_experts = 1;    // of the layer
  double tensor_degree = 1;  // ranks among which each expert is sliced
  double expert_degree = 1;  // ranks among which experts are divided
  // 1: all experts have as many tokens; 1 + a: the tokens of experts follow a power law with the
  // exponent a.
  double skew = 1;
};
std::vector<std::string> ExpertsFeatures();
OperatorWork WorkOf(const ExpertsShape& shape, const ProductFormat& format,
                    const DeviceFigures& device);

// A collective. `bytes` is the whole buffer: of an all-gather what each rank has afterwards, of
// reduce-scatter, all-to-all and all-reduce what it had before.
struct CollectiveShape {
  double bytes = 0;
  double num_ranks = 2;
  // How often the other ranks' part of the buffer passes a rank's link: 2 of an all-reduce, else 1.
  double passes = 1;
};
std::vector<std::string> CollectiveFeatures();
OperatorWork WorkOf(const CollectiveShape& shape, double link_bytes_per_second);

// Dispatch or combine of an expert stage by kernels that take some multiprocessors for themselves.
struct DispatchShape {
  double num_tokens = 0;  // of a rank
  double hidden = 0;
  double top_k = 1;
  double num_experts = 1;
  double multiprocessors = 1;
};
// What tables of them (DeepEP's) are of: all ranks of one host, and per element what DeepEP sends
// by default. The tables name no format. In bf16 their dispatch would be faster than its link, 557
// of 450 GB/s on H100; in fp8, with a scale of 4 bytes for 128 elements, both reach about as much
// with few multiprocessors, 66 and 71 GB/s with 4.
inline constexpr double kRanksOfDispatch = 8;
inline constexpr double kDispatchedBytes = 1 + 4.0 / 128;
inline constexpr double kCombinedBytes = 2;
std::vector<std::string> DispatchFeatures();
// A token is sent once to each of the `num_ranks` ranks that it visits, `element_bytes` each.
OperatorWork WorkOf(const DispatchShape& shape, double num_ranks, double element_bytes,
                    double link_bytes_per_second);

}  // namespace convene::cost
