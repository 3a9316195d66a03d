// The expert GEMM against the machine: streams the weights of many experts from memory with 1 to
// 128 rows each and prints its rate beside the dot peak and the read bandwidth measured around it,
// and the share of the roofline's bound. grouped_gemm_bench --help shows the options.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/median.h"
#include "bench/onednn_baseline.h"
#include "hardware/huge_buffer.h"
#include "hardware/isa.h"
#include "hardware/measure_memory.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "kernels/grouped_gemm.h"
#include "kernels/measure_peaks.h"
#include "kernels/pack.h"
#include "kernels/streaming_choice.h"

namespace convene {
namespace {

using kernels::ActivationFormat;
using kernels::PackedMatrix;
using kernels::WeightFormat;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
T OrExit(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "grouped_gemm_bench: {}\n", result.error().message);
  std::exit(1);
}

struct Options {
  std::string weights = "int8";
  std::string activations = "int8";
  std::string order = "grouped";
  int group = 32;
  int num_experts = 64;
  int hidden = 2048;
  int intermediate = 1024;
  int repeats = 7;
  bool onednn = false;
  bool walk = false;
  std::vector<int> rows = {1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128};
};

struct Formats {
  WeightFormat weights;
  ActivationFormat activations;
  ActivationFormat wide;  // of what SiLU gives
};

Formats FormatsOf(const Options& options) {
  Formats formats{*kernels::WeightFormatFromName(options.weights), ActivationFormat::kInt8,
                  ActivationFormat::kF32};
  if (formats.weights == WeightFormat::kF32) {
    formats.activations = ActivationFormat::kF32;
  } else if (formats.weights == WeightFormat::kBf16 || options.activations == "bf16") {
    formats.activations = formats.wide = ActivationFormat::kBf16;
  }
  return formats;
}

// 0x3c is a small number in each format: float 0.011, bf16 0.011, a byte below kInt8Zero.
void FillWithOrdinaryNumbers(std::span<std::byte> bytes) {
  std::memset(bytes.data(), 0x3c, bytes.size());
}

// Products of denormal numbers would take the slow way through the processor.
void SetScales(const PackedMatrix& matrix) {
  if (!kernels::IsInteger(matrix.format)) return;
  for (int panel_idx = 0; panel_idx < matrix.num_panels(); ++panel_idx) {
    const kernels::PackedPanel panel = matrix.panel(panel_idx);
    std::fill_n(const_cast<float*>(panel.scales()), panel.width, 1e-3f);
  }
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        formats_(FormatsOf(options)),
        pool_(OrExit(hardware::CpusForRank(OrExit(hardware::ReadTopology()), {}, std::nullopt))),
        kernels_(*OrExit(kernels::ChooseKernels())),
        isa_(OrExit(hardware::ChooseIsa())) {
    const PackedMatrix gate_up{.format = formats_.weights,
                               .group = options.group,
                               .rows = kernels::GateUpRows(options.intermediate),
                               .cols = options.hidden};
    const PackedMatrix down{.format = formats_.weights,
                            .group = options.group,
                            .rows = options.hidden,
                            .cols = options.intermediate};
    expert_bytes_ = gate_up.size_bytes() + down.size_bytes();
    weights_ =
        OrExit(hardware::HugeBuffer::Allocate(expert_bytes_ * options.num_experts, "the weights"));
    FillWithOrdinaryNumbers(weights_.bytes());
    gate_ups_.assign(options.num_experts, gate_up);
    downs_.assign(options.num_experts, down);
    for (int expert = 0; expert < options.num_experts; ++expert) {
      gate_ups_[expert].data = weights_.data() + expert_bytes_ * expert;
      downs_[expert].data = gate_ups_[expert].data + gate_up.size_bytes();
      SetScales(gate_ups_[expert]);
      SetScales(downs_[expert]);
    }
    scratch_ = OrExit(hardware::HugeBuffer::Allocate(
        static_cast<size_t>(kernels::kGemmScratchBytes) * pool_.size(), "the scratch"));
  }

  void Run() {
    fmt::print("{} experts, hidden {}, intermediate {}, {} weights{}, {} threads, {}\n",
               options_.num_experts, options_.hidden, options_.intermediate, options_.weights,
               formats_.weights == WeightFormat::kInt4
                   ? fmt::format(" (groups of {})", options_.group)
                   : "",
               pool_.size(), kernels_.name);
    fmt::print("{:>6} {:>10} {:>8} {:>10} {:>8} {:>8} {:>8}\n", "rows", "Gop/s", "of peak", "GB/s",
               "of read", "of bound", "best");
    if (options_.onednn) fmt::print("  and oneDNN in the same run: Gop/s, ours / oneDNN\n");
    for (const int rows : options_.rows) RunRows(rows);
  }

 private:
  void RunRows(int rows) {
    const int num_rows = rows * options_.num_experts;
    const int64_t in_stride = ActivationRowBytes(formats_.activations, options_.hidden);
    const int64_t wide_stride = ActivationRowBytes(formats_.wide, options_.intermediate);
    const int64_t middle_stride = ActivationRowBytes(formats_.activations, options_.intermediate);
    const auto allocate = [&](int64_t stride) {
      return OrExit(
          hardware::HugeBuffer::Allocate(static_cast<size_t>(stride) * num_rows, "the rows"));
    };
    const auto in = allocate(in_stride);
    const auto wide = allocate(wide_stride);
    const auto middle = allocate(middle_stride);
    const auto out = allocate(int64_t{4} * options_.hidden);
    FillWithOrdinaryNumbers(in.bytes());
    if (formats_.activations == ActivationFormat::kInt8) {
      std::vector<float> row(options_.hidden);
      std::mt19937 random(1);
      std::normal_distribution<float> normal;
      for (int i = 0; i < num_rows; ++i) {
        if (i < 16) std::generate(row.begin(), row.end(), [&] { return normal(random); });
        kernels_.quantize(row.data(), options_.hidden, in.data() + i * in_stride);
      }
    }
    std::vector<kernels::GemmGroup> first, second;
    for (int expert = 0; expert < options_.num_experts; ++expert) {
      first.push_back({&gate_ups_[expert], expert * rows, rows});
      second.push_back({&downs_[expert], expert * rows, rows});
    }
    const bool int8 = formats_.activations == ActivationFormat::kInt8;
    const auto order =
        options_.order == "dense" ? kernels::GemmOrder::kDense : kernels::GemmOrder::kGrouped;
    const auto experts = [&](const kernels::KernelSet& kernels) {
      kernels::RunGroupedGemm(kernels, pool_,
                              {.groups = first,
                               .activations = formats_.activations,
                               .rows = in.data(),
                               .row_stride = in_stride,
                               .epilogue = kernels::Epilogue::kSiluMul,
                               .out_format = formats_.wide,
                               .out = wide.data(),
                               .out_stride = wide_stride,
                               .scratch = scratch_.data(),
                               .order = order});
      if (int8) {
        pool_.ParallelFor(
            num_rows,
            [&](int64_t row, int) {
              kernels_.quantize(reinterpret_cast<const float*>(wide.data() + row * wide_stride),
                                options_.intermediate, middle.data() + row * middle_stride);
            },
            4);
      }
      kernels::RunGroupedGemm(kernels, pool_,
                              {.groups = second,
                               .activations = formats_.activations,
                               .rows = int8 ? middle.data() : wide.data(),
                               .row_stride = int8 ? middle_stride : wide_stride,
                               .out = out.data(),
                               .out_stride = int64_t{4} * options_.hidden,
                               .scratch = scratch_.data(),
                               .order = order});
    };
    const double ops = 6.0 * options_.hidden * options_.intermediate * num_rows;
    const auto bytes = static_cast<double>(weights_.size_bytes());
    const kernels::ActivationFormat dots = int8 ? kernels::ActivationFormat::kInt8
                                           : formats_.activations == ActivationFormat::kBf16
                                               ? kernels::ActivationFormat::kBf16
                                               : kernels::ActivationFormat::kF32;
    experts(kernels_);
    if (options_.walk) return Walk(rows, ops, dots, experts);
    std::vector<double> rate, peak, read, share;
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      peak.push_back(kernels::MeasureDotPeak(pool_, isa_, dots, 0.05).best);
      read.push_back(hardware::MeasureReadBandwidth(pool_, weights_.bytes(), 0.1).best);
      const double start = Seconds();
      experts(kernels_);
      const double seconds = Seconds() - start;
      rate.push_back(ops / seconds);
      share.push_back(std::max(ops / peak.back(), bytes / read.back()) / seconds);
    }
    const double typical = Median(rate);
    // On a machine with other work the best repetition against the best peaks says what the kernel
    // can do, the median what it did.
    const double best_rate = *std::max_element(rate.begin(), rate.end());
    const double best_bound = std::min(*std::max_element(peak.begin(), peak.end()),
                                       *std::max_element(read.begin(), read.end()) * ops / bytes);
    fmt::print("{:>6} {:>10.1f} {:>7.1f}% {:>10.1f} {:>7.1f}% {:>7.1f}% {:>7.1f}%\n", rows,
               typical / 1e9, 100 * typical / Median(peak), typical / ops * bytes / 1e9,
               100 * typical / ops * bytes / Median(read), 100 * Median(share),
               100 * best_rate / best_bound);
    if (options_.onednn) CompareWithOneDnn(dots, rows, typical);
    std::fflush(stdout);
  }

  // All ways of reading panels that differ for these products (what is the same instructions is
  // tried once), in turn in each round, against a plain reading loop just before and after each and
  // the dot peak of the round.
  void Walk(int rows, double ops, kernels::ActivationFormat dots,
            const std::function<void(const kernels::KernelSet&)>& experts) {
    struct Tried {
      kernels::PanelStreaming way;
      std::vector<double> of_read = {};
      std::vector<double> of_bound = {};
    };
    std::vector<Tried> tried;
    const auto add = [&](const kernels::PanelStreaming& way) {
      const kernels::PanelStreaming acting =
          kernels_.acting(way, formats_.weights, formats_.activations, rows);
      const bool is_new = std::none_of(tried.begin(), tried.end(),
                                       [&](const Tried& one) { return one.way == acting; });
      if (is_new) tried.push_back({acting});
    };
    for (const bool own_shares : {false, true}) {
      for (const bool half_lines : {false, true}) {
        for (const bool fetches_next : {false, true}) {
          for (const int ahead_bytes : {0, 1024, 2048, 8192}) {
            add({ahead_bytes, fetches_next, half_lines, own_shares});
          }
        }
      }
    }
    for (const int streams : {2, 4, 8}) {
      for (const int piece_bytes : {512, 1024, 2048}) {
        add({.ahead_bytes = 0,
             .fetches_next = false,
             .own_shares = true,
             .streams = streams,
             .piece_bytes = piece_bytes});
      }
    }
    const auto bytes = static_cast<double>(weights_.size_bytes());
    const auto read_rate = [&] {
      return hardware::MeasureReadBandwidth(pool_, weights_.bytes(), 0.02).median;
    };
    std::vector<double> read;
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      const double peak = kernels::MeasureDotPeak(pool_, isa_, dots, 0.05).best;
      for (Tried& one : tried) {
        const kernels::StreamingChoice choice(one.way);
        kernels::KernelSet kernels = kernels_;
        kernels.streaming = &choice;
        const double before = read_rate();
        const double start = Seconds();
        experts(kernels);
        const double seconds = Seconds() - start;
        read.push_back((before + read_rate()) / 2);
        one.of_read.push_back(bytes / seconds / read.back());
        one.of_bound.push_back(std::max(ops / peak, bytes / read.back()) / seconds);
      }
    }
    const auto [slowest, fastest] = std::minmax_element(read.begin(), read.end());
    fmt::print("{} rows, read at {:.1f} GB/s ({:.1f} to {:.1f}):\n", rows, Median(read) / 1e9,
               *slowest / 1e9, *fastest / 1e9);
    fmt::print("{:>8} {:>8} {:>6} {:>6} {:>8} {:>6} {:>8} {:>8}\n", "panels", "ahead B", "next",
               "lines", "streams", "piece", "of read", "of bound");
    for (const Tried& one : tried) {
      fmt::print("{:>8} {:>8} {:>6} {:>6} {:>8} {:>6} {:>7.1f}% {:>7.1f}%\n",
                 one.way.own_shares ? "own" : "turn", one.way.ahead_bytes,
                 one.way.fetches_next ? "yes" : "no", one.way.half_lines ? "half" : "whole",
                 one.way.streams, one.way.piece_bytes, 100 * Median(one.of_read),
                 100 * Median(one.of_bound));
    }
    std::fflush(stdout);
  }

  void CompareWithOneDnn(kernels::ActivationFormat format, int rows, double typical) {
    const Result<bench::OneDnnRate> other =
        bench::MeasureOneDnn(format,
                             {.num_experts = options_.num_experts,
                              .hidden = options_.hidden,
                              .intermediate = options_.intermediate,
                              .rows_per_expert = rows},
                             pool_.cpus(), 0.5);
    if (!other) {
      fmt::print("       {}\n", other.error().message);
      return;
    }
    fmt::print("       oneDNN {:>10.1f}  {:.2f} x  ({})\n", other->ops_per_s / 1e9,
               typical / other->ops_per_s, other->implementation);
  }

  const Options options_;
  const Formats formats_;
  hardware::ThreadPool pool_;
  const kernels::KernelSet& kernels_;
  const hardware::Isa isa_;
  size_t expert_bytes_ = 0;
  hardware::HugeBuffer weights_;
  hardware::HugeBuffer scratch_;
  std::vector<PackedMatrix> gate_ups_, downs_;
};

}  // namespace
}  // namespace convene

int main(int argc, char** argv) {
  convene::Options options;
  CLI::App app("The grouped expert GEMM against the machine's peaks");
  app.add_option("--weights", options.weights)
      ->check(CLI::IsMember({"f32", "bf16", "int8", "int4"}))
      ->capture_default_str();
  app.add_option("--activations", options.activations, "With integer weights")
      ->check(CLI::IsMember({"bf16", "int8"}))
      ->capture_default_str();
  app.add_option("--order", options.order)
      ->check(CLI::IsMember({"grouped", "dense"}))
      ->capture_default_str();
  app.add_option("--group", options.group, "Columns per int4 scale")
      ->check(CLI::IsMember({32, 64, 128}))
      ->capture_default_str();
  app.add_option("--experts", options.num_experts)->capture_default_str();
  app.add_option("--hidden", options.hidden)->capture_default_str();
  app.add_option("--intermediate", options.intermediate)->capture_default_str();
  app.add_option("--rows", options.rows, "Rows per expert")->capture_default_str();
  app.add_option("--repeat", options.repeats)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_flag("--walk", options.walk,
               "Try the ways of reading panels that differ for the format and rows, in turn with a "
               "reading loop");
  app.add_flag("--onednn", options.onednn, "Compare with oneDNN in the same run");
  CLI11_PARSE(app, argc, argv);
  if (options.onednn && options.weights == "f32") {
    fmt::print(stderr,
               "grouped_gemm_bench: oneDNN is measured in bf16 and int8, so --onednn does not go "
               "with --weights f32: choose bf16, int8 or int4, or leave --onednn out\n");
    return 1;
  }
  convene::Bench(options).Run();
  return 0;
}
