// The expert GEMM against the machine: grouped_gemm_bench [experts hidden intermediate]
// streams the weights of many experts from memory with 1 to 128 rows each and prints its rate
// beside the dot peak and the read bandwidth measured around it, and the share of the roofline's
// bound.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "hardware/huge_buffer.h"
#include "hardware/isa.h"
#include "hardware/measure_memory.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "kernels/grouped_gemm.h"
#include "kernels/measure_peaks.h"
#include "kernels/pack.h"

namespace convene {
namespace {

using kernels::PackedMatrix;
using kernels::WeightFormat;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <typename T>
T OrExit(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "grouped_gemm_bench: {}\n", result.error().message);
  std::exit(1);
}

int Run(int num_experts, int hidden, int intermediate) {
  const auto topology = OrExit(hardware::ReadTopology());
  const auto cpus = OrExit(hardware::CpusForRank(topology, {}, std::nullopt));
  hardware::ThreadPool pool(cpus);
  const kernels::KernelSet& kernels = *OrExit(kernels::ChooseKernels());
  const hardware::Isa isa = OrExit(hardware::ChooseIsa());

  const PackedMatrix gate_up{
      .format = WeightFormat::kBf16, .rows = kernels::GateUpRows(intermediate), .cols = hidden};
  const PackedMatrix down{.format = WeightFormat::kBf16, .rows = hidden, .cols = intermediate};
  const size_t expert_bytes = gate_up.size_bytes() + down.size_bytes();
  const auto weights =
      OrExit(hardware::HugeBuffer::Allocate(expert_bytes * num_experts, "the weights"));
  std::memset(weights.data(), 0x11, weights.size_bytes());
  std::vector<PackedMatrix> gate_ups(num_experts, gate_up), downs(num_experts, down);
  for (int expert = 0; expert < num_experts; ++expert) {
    gate_ups[expert].data = weights.data() + expert_bytes * expert;
    downs[expert].data = gate_ups[expert].data + gate_up.size_bytes();
  }

  fmt::print("{} experts, hidden {}, intermediate {}, bf16, {} threads, {}\n", num_experts, hidden,
             intermediate, pool.size(), kernels.name);
  fmt::print("{:>6} {:>10} {:>8} {:>10} {:>8} {:>8}\n", "rows", "GFLOP/s", "of peak", "GB/s",
             "of read", "of bound");
  for (const int rows : {1, 2, 4, 6, 8, 12, 16, 32, 64, 128}) {
    const int num_rows = rows * num_experts;
    const size_t row_bytes = 2 * kernels::PaddedActivations(std::max(hidden, intermediate));
    const auto input = OrExit(hardware::HugeBuffer::Allocate(row_bytes * num_rows, "the rows"));
    const auto middle = OrExit(hardware::HugeBuffer::Allocate(row_bytes * num_rows, "the rows"));
    const auto out =
        OrExit(hardware::HugeBuffer::Allocate(sizeof(float) * hidden * num_rows, "the outputs"));
    std::memset(input.data(), 0x11, input.size_bytes());
    std::vector<const void*> in_rows(num_rows), middle_rows(num_rows);
    std::vector<kernels::GemmGroup> first, second;
    for (int i = 0; i < num_rows; ++i) {
      in_rows[i] = input.data() + row_bytes * i;
      middle_rows[i] = middle.data() + row_bytes * i;
    }
    for (int expert = 0; expert < num_experts; ++expert) {
      first.push_back({&gate_ups[expert], expert * rows, rows});
      second.push_back({&downs[expert], expert * rows, rows});
    }
    std::vector<double> rate, peak, read, share;
    for (int repeat = 0; repeat < 7; ++repeat) {
      peak.push_back(kernels::MeasureDotPeak(pool, isa, kernels::DotFormat::kBf16, 0.05).best);
      read.push_back(hardware::MeasureReadBandwidth(pool, weights.bytes(), 0.1).best);
      const double start = Seconds();
      kernels::RunGroupedGemm(kernels, pool,
                              {.groups = first,
                               .rows = in_rows.data(),
                               .epilogue = kernels::Epilogue::kSiluMul,
                               .out = middle.data(),
                               .out_stride = static_cast<int64_t>(row_bytes)});
      kernels::RunGroupedGemm(kernels, pool,
                              {.groups = second,
                               .rows = middle_rows.data(),
                               .out = out.data(),
                               .out_stride = int64_t{4} * hidden});
      const double seconds = Seconds() - start;
      const double flops = 6.0 * hidden * intermediate * num_rows;
      const double bytes = static_cast<double>(weights.size_bytes());
      rate.push_back(flops / seconds);
      share.push_back(std::max(flops / peak.back(), bytes / read.back()) / seconds);
    }
    const double flops = Median(rate);
    const double bytes =
        flops / (6.0 * hidden * intermediate * rows) * static_cast<double>(expert_bytes);
    fmt::print("{:>6} {:>10.1f} {:>7.1f}% {:>10.1f} {:>7.1f}% {:>7.1f}%\n", rows, flops / 1e9,
               100 * flops / Median(peak), bytes / 1e9, 100 * bytes / Median(read),
               100 * Median(share));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace convene

int main(int argc, char** argv) {
  const auto argument = [&](int index, int fallback) {
    return argc > index ? std::atoi(argv[index]) : fallback;
  };
  return convene::Run(argument(1, 64), argument(2, 2048), argument(3, 1024));
}
