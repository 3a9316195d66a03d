// The orders of an offloaded decode step that MoE-Lightning compares (its Fig. 6 and Table 5), run
// for real on two cores: one is the device, one the host beside it, and what passes between them is
// copied at a stated rate (evaluate/offloaded_steps.h). A model of random weights, whose keys and
// values were never computed; each step's logits must be those of the same step with everything
// resident, bit by bit. Predictions are made, and printed, before the first step that is measured:
//   build/release/offload_bench --sequences 256 --micro-batches 4 --context 512 --link 1.2
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cost/rates.h"
#include "device/cpu/cpu_device.h"
#include "drawing/trace.h"
#include "evaluate/invented_model.h"
#include "evaluate/offloaded_steps.h"
#include "evaluate/step_case.h"
#include "kernels/choose_kernels.h"
#include "runtime/formats.h"
#include "runtime/transformer.h"
#include "simulate/simulate.h"

namespace convene::bench {
namespace {

using evaluate::OffloadedSteps;
using schedule::LaneKind;
using schedule::SizeKind;
using schedule::TaskKind;
using strategy::OffloadOrder;
using Clock = std::chrono::steady_clock;

constexpr int kMostContext = 8000;  // invented models have 8192 positions

// By default OLMoE-1B-7B's, of a few layers, with a small vocabulary, so that the head, which no
// order changes, is no larger a part of a step than in the whole model.
struct Options {
  evaluate::ModelShape shape = {.layers = 4};
  std::string weights = "int8";
  int sequences = 256;
  int micro_batches = 4;
  int context = 512;
  double link_gb_per_second = 1.2;
  int rounds = 5;
  int device_cpu = 0;
  int host_cpu = 1;
  std::vector<std::string> orders;
  std::string trace;
  std::string json;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Small bf16 numbers, all different.
void FillCache(device::KvCache& cache) {
  uint64_t state = 1;
  for (int layer = 0; layer < cache.num_layers(); ++layer) {
    for (int block = 0; block < cache.num_blocks(); ++block) {
      std::byte* const data = cache.Address(layer, block);
      for (int64_t i = 0; i + 8 <= cache.BlockBytes(layer); i += 8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const uint64_t bits = (state & 0x807f807f807f807f) | 0x3c003c003c003c00;
        std::memcpy(data + i, &bits, sizeof(bits));
      }
    }
  }
}

// What tasks cost alone on this machine: those that compute by kind, pages by their bytes.
struct Calibration {
  std::map<TaskKind, double> seconds;
  double staged_bytes_per_second = 0;
};

struct Order {
  OffloadOrder order = OffloadOrder::kCgo;
  std::unique_ptr<OffloadedSteps> steps = {};
  schedule::Timeline predicted = {};
  std::vector<double> seconds = {};  // by round
  schedule::Timeline measured = {};  // of the last round
};

class Study {
 public:
  explicit Study(const Options& options)
      : options_(options),
        formats_(runtime::DefaultFormats(*kernels::WeightFormatFromName(options.weights))),
        host_pool_({options.host_cpu}),
        device_pool_({options.device_cpu}),
        host_(device::MakeCpuDevice(**kernels::ChooseKernels(), host_pool_)),
        device_(device::MakeCpuDevice(**kernels::ChooseKernels(), device_pool_)),
        sequences_(step_case(), /*num_groups=*/1, options.shape.vocab, /*seed=*/1) {}

  Status Run() {
    if (const Status created = CreateModel(); !created) return created;
    if (const Status calibrated = Calibrate(); !calibrated) return calibrated;
    for (const std::string& name : options_.orders) {
      Order& order = orders_.emplace_back(Order{.order = *strategy::OffloadOrderNamed(name)});
      auto steps = Create(order.order, options_.link_gb_per_second * 1e9);
      if (!steps) return steps.error();
      order.steps = *std::move(steps);
      order.predicted = Predict(order);
    }
    PrintPredictions();
    for (int round = -1; round < options_.rounds; ++round) {  // the first one warms up
      for (size_t i = 0; i < orders_.size(); ++i) {
        Order& order = orders_[(i + static_cast<size_t>(round + 1)) % orders_.size()];
        if (const Status ran = RunStep(order, /*counts=*/round >= 0); !ran) return ran;
      }
    }
    PrintResults();
    WriteJson();
    WriteTrace();
    return {};
  }

 private:
  evaluate::StepCase step_case() const {
    return {.batch = options_.sequences, .tokens = 1, .context = options_.context};
  }
  std::span<const device::SequenceStep> step() const { return sequences_.step(); }

  Status CreateModel() {
    auto model = evaluate::InventedModel::Create(evaluate::InventSpec(options_.shape),
                                                 formats_.weights, {1, 1, 1, 1}, 0, ledger_);
    if (!model) return model.error();
    model_ = *std::move(model);
    auto resident =
        runtime::Transformer::Create(model_->weights(), *host_,
                                     {.max_step_tokens = options_.sequences,
                                      .num_kv_blocks = evaluate::NumKvBlocks(step_case(), 1),
                                      .context = options_.context + 1,
                                      .activations = formats_.activations,
                                      .kv = formats_.kv},
                                     ledger_);
    if (!resident) return resident.error();
    resident_.emplace(*std::move(resident));
    FillCache(resident_->kv_cache());
    return resident_->Forward(step(), [this](int, int, std::span<const float> logits) {
      logits_.emplace_back(logits.begin(), logits.end());
    });
  }

  Result<std::unique_ptr<OffloadedSteps>> Create(OffloadOrder order, double link) {
    return OffloadedSteps::Create(model_->model_weights(), *device_, *host_, resident_->kv_cache(),
                                  {.pipeline = {.order = order,
                                                .micro_batches = options_.micro_batches,
                                                .bytes = ElementBytes()},
                                   .link_bytes_per_second = link,
                                   .max_sequences = options_.sequences,
                                   .context = options_.context + 1,
                                   .activations = formats_.activations,
                                   .kv = formats_.kv,
                                   .cpus = {.compute = {options_.device_cpu, options_.host_cpu},
                                            .host = {options_.host_cpu}}},
                                  ledger_);
  }
  strategy::ElementBytes ElementBytes() const {
    return runtime::Transformer::BytesOf(formats_, comm::WireFormat::kBf16, false);
  }

  // Every task alone: layer by layer nothing runs beside another task, and without a link's limit
  // that is soon done.
  Status Calibrate() {
    auto steps = Create(OffloadOrder::kLayerwise, 0);
    if (!steps) return steps.error();
    std::map<TaskKind, std::vector<double>> seconds;
    for (int i = 0; i < 3; ++i) {
      Order order{.order = OffloadOrder::kLayerwise, .steps = *std::move(steps)};
      if (const Status ran = RunStep(order, /*counts=*/false); !ran) return ran;
      steps = std::move(order.steps);
      if (i == 0) continue;
      const std::vector<schedule::Task>& tasks = (*steps)->schedule().tasks;
      for (size_t id = 0; id < tasks.size(); ++id) {
        seconds[tasks[id].kind].push_back((*steps)->timeline().tasks[id].seconds());
      }
    }
    for (auto& [kind, all] : seconds) calibration_.seconds[kind] = Median(all);
    return MeasureStaging();
  }

  // Of a layer's experts, as a page's copy would.
  Status MeasureStaging() {
    auto memory = ledger_.Allocate(memory::Use::kStaging, static_cast<uint64_t>(LayerBytes()));
    if (!memory) return memory.error();
    std::vector<double> seconds;
    for (int i = 0; i < 4; ++i) {
      const auto start = Clock::now();
      std::byte* to = memory->data();
      for (const weights::FfnWeights& expert : FirstExperts()) {
        for (const kernels::PackedMatrix* matrix : {&expert.up, &expert.down}) {
          std::memcpy(to, matrix->data, matrix->size_bytes());
          to += matrix->size_bytes();
        }
      }
      if (i > 0) seconds.push_back(SecondsSince(start));
    }
    calibration_.staged_bytes_per_second = LayerBytes() / Median(seconds);
    return {};
  }
  const std::vector<weights::FfnWeights>& FirstExperts() const {
    return model_->model_weights().layers.front().moe->experts;
  }
  double LayerBytes() const {
    double bytes = 0;
    for (const weights::FfnWeights& expert : FirstExperts()) {
      bytes += static_cast<double>(expert.up.size_bytes() + expert.down.size_bytes());
    }
    return bytes;
  }

  // Costs of tasks alone, and the link's rate: nothing of what cores and memory share.
  schedule::Timeline Predict(const Order& order) const {
    schedule::Schedule schedule = order.steps->schedule();
    cost::Rates rates;
    for (const auto& [kind, seconds] : calibration_.seconds) {
      if (schedule::IsCommunication(kind)) continue;
      rates.fixed_seconds[static_cast<size_t>(kind)] = seconds;
    }
    rates.fixed_seconds[static_cast<size_t>(TaskKind::kStagePage)] =
        LayerBytes() / options_.micro_batches / calibration_.staged_bytes_per_second;
    rates.ranks.front().load_bytes_per_second = options_.link_gb_per_second * 1e9;
    rates.ranks.front().store_bytes_per_second = options_.link_gb_per_second * 1e9;
    for (schedule::Task& task : schedule.tasks) {
      if (task.kind == TaskKind::kStagePage || !schedule::IsCommunication(task.kind)) {
        task.work = {};
      }
    }
    const double tokens = static_cast<double>(options_.sequences) / options_.micro_batches;
    return simulate::Simulate(schedule, rates, [&](const schedule::Size& size) {
      return size.kind == SizeKind::kKeys ? tokens * (options_.context + 1) : tokens;
    });
  }

  Status RunStep(Order& order, bool counts) {
    ForgetNewPositions();
    size_t num_same = 0;
    const auto start = Clock::now();
    const Status done =
        order.steps->Forward(step(), [&](int sequence, int, std::span<const float> logits) {
          num_same += std::ranges::equal(logits, logits_[static_cast<size_t>(sequence)]) ? 1 : 0;
        });
    const double seconds = SecondsSince(start);
    if (!done) return done;
    if (num_same != logits_.size()) {
      return Error{
          fmt::format("{}: the logits of {} of {} sequences are those of the resident step",
                      strategy::Name(order.order), num_same, logits_.size())};
    }
    if (!counts) return {};
    order.seconds.push_back(seconds);
    order.measured = order.steps->timeline();
    return {};
  }

  // So that a step that does not write them is found out.
  void ForgetNewPositions() {
    device::KvCache& cache = resident_->kv_cache();
    for (const device::SequenceStep& sequence : step()) {
      if (sequence.first_position % device::kKvBlockTokens != 0) continue;
      for (int layer = 0; layer < cache.num_layers(); ++layer) {
        std::memset(cache.Address(layer, sequence.blocks.back()), 0x3c,
                    static_cast<size_t>(cache.BlockBytes(layer)));
      }
    }
  }

  void PrintPredictions() const {
    const evaluate::ModelShape& shape = options_.shape;
    fmt::print(
        "{} layers of {} experts x {} x {}, top {}, {} weights: {:.1f} MB streamed of each; "
        "{} sequences behind {} tokens, {} micro-batches, link {} GB/s\n",
        shape.layers, shape.experts, shape.hidden, shape.intermediate, shape.top_k,
        options_.weights, LayerBytes() / 1e6, options_.sequences, options_.context,
        options_.micro_batches, options_.link_gb_per_second);
    for (const auto& [kind, seconds] : calibration_.seconds) {
      if (!schedule::IsCommunication(kind)) {
        fmt::print("  {}: {:.3f} ms alone\n", schedule::Name(kind), 1e3 * seconds);
      }
    }
    fmt::print("  staging: {:.2f} GB/s alone\n", calibration_.staged_bytes_per_second / 1e9);
    for (const Order& order : orders_) {
      fmt::print("predicted {:9} {:.3f} s\n", strategy::Name(order.order),
                 order.predicted.seconds());
    }
    std::fflush(stdout);
  }

  // The share of a step in which a lane is busy.
  static double BusyShare(const Order& order, LaneKind lane) {
    double busy = 0;
    const std::vector<schedule::Task>& tasks = order.steps->schedule().tasks;
    for (size_t id = 0; id < tasks.size(); ++id) {
      if (tasks[id].lane.kind == lane) busy += order.measured.tasks[id].seconds();
    }
    return busy / order.measured.seconds();
  }

  void PrintResults() const {
    fmt::print("\n{:9} {:>9} {:>8} {:>17} {:>9} {:>7} {:>8} {:>6} {:>6} {:>6}\n", "order",
               "predicted", "median s", "(min - max)", "tokens/s",
               fmt::format("{} is", strategy::Name(orders_.front().order)), "device %", "host %",
               "up %", "down %");
    const double of_first = Median(orders_.front().seconds);
    for (const Order& order : orders_) {
      const double median = Median(order.seconds);
      const auto [least, most] = std::ranges::minmax(order.seconds);
      fmt::print("{:9} {:9.3f} {:8.3f} {:>17} {:9.1f} {:>6.2f}x {:8.1f} {:6.1f} {:6.1f} {:6.1f}\n",
                 strategy::Name(order.order), order.predicted.seconds(), median,
                 fmt::format("({:.3f} - {:.3f})", least, most), options_.sequences / median,
                 median / of_first, 100 * BusyShare(order, LaneKind::kCompute),
                 100 * BusyShare(order, LaneKind::kHost), 100 * BusyShare(order, LaneKind::kLoad),
                 100 * BusyShare(order, LaneKind::kStore));
    }
    fmt::print("logits of all steps: those of the resident step, bit by bit\n");
  }

  void WriteJson() const {
    if (options_.json.empty()) return;
    nlohmann::json orders;
    for (const Order& order : orders_) {
      orders.push_back({{"order", strategy::Name(order.order)},
                        {"predicted_seconds", order.predicted.seconds()},
                        {"seconds", order.seconds}});
    }
    std::ofstream(options_.json) << nlohmann::json{{"sequences", options_.sequences},
                                                   {"micro_batches", options_.micro_batches},
                                                   {"context", options_.context},
                                                   {"layers", options_.shape.layers},
                                                   {"weights", options_.weights},
                                                   {"link_gb_per_second",
                                                    options_.link_gb_per_second},
                                                   {"orders", orders}}
                                        .dump(2)
                                 << "\n";
  }

  void WriteTrace() const {
    if (options_.trace.empty()) return;
    drawing::Trace trace;
    trace.weights = options_.weights;
    trace.num_threads = 1;
    double start = 0;
    for (const Order& order : orders_) {
      trace.steps.push_back({.name = std::string(strategy::Name(order.order)),
                             .start = start,
                             .schedule = order.steps->schedule(),
                             .measured = order.measured,
                             .predicted = order.predicted,
                             .predicted_by = "costs of tasks alone"});
      start += std::max(order.measured.seconds(), order.predicted.seconds());
    }
    std::ofstream(options_.trace) << drawing::TraceJson(trace);
  }

  Options options_;
  runtime::Formats formats_;
  hardware::ThreadPool host_pool_;
  hardware::ThreadPool device_pool_;
  memory::Ledger ledger_;
  std::unique_ptr<device::Device> host_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<evaluate::InventedModel> model_;
  std::optional<runtime::Transformer> resident_;
  evaluate::CaseSequences sequences_;
  std::vector<std::vector<float>> logits_;  // by sequence
  Calibration calibration_;
  std::vector<Order> orders_;
};

int Main(int argc, char** argv) {
  Options options;
  for (const OffloadOrder order : strategy::kOffloadOrders) {
    options.orders.emplace_back(strategy::Name(order));
  }
  CLI::App app("Runs orders of an offloaded decode step on two cores");
  evaluate::ModelShape& shape = options.shape;
  app.add_option("--hidden", shape.hidden)->capture_default_str();
  app.add_option("--heads", shape.heads)->capture_default_str();
  app.add_option("--kv-heads", shape.kv_heads, "0: as many as heads")->capture_default_str();
  app.add_option("--vocab", shape.vocab)->capture_default_str();
  app.add_option("--layers", shape.layers)->capture_default_str();
  app.add_option("--experts", shape.experts)->capture_default_str();
  app.add_option("--top-k", shape.top_k)->capture_default_str();
  app.add_option("--intermediate", shape.intermediate)->capture_default_str();
  app.add_option("--weights", options.weights)
      ->check(CLI::IsMember({"bf16", "int8", "int4"}))
      ->capture_default_str();
  app.add_option("--sequences", options.sequences)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches)
      ->check(CLI::Range(1, strategy::kMostMicroBatches))
      ->capture_default_str();
  app.add_option("--context", options.context, "tokens of each sequence before the step")
      ->check(CLI::Range(1, kMostContext))
      ->capture_default_str();
  app.add_option("--link", options.link_gb_per_second, "GB/s of the link in each direction")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--device-cpu", options.device_cpu)->capture_default_str();
  app.add_option("--host-cpu", options.host_cpu)->capture_default_str();
  app.add_option("--orders", options.orders, "the first is what the others are compared with")
      ->delimiter(',')
      ->check(CLI::IsMember(options.orders));
  app.add_option("--trace", options.trace, "a file for the last round's steps");
  app.add_option("--json", options.json, "a file for all rounds' seconds");
  CLI11_PARSE(app, argc, argv);
  const Status ran = Study(options).Run();
  if (!ran) fmt::print(stderr, "{}\n", ran.error().message);
  return ran.ok() ? 0 : 1;
}

}  // namespace
}  // namespace convene::bench

int main(int argc, char** argv) { return convene::bench::Main(argc, argv); }
