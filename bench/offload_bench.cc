// The orders of an offloaded decode step that MoE-Lightning compares (its Fig. 6 and Table 5), run
// for real (runtime/offloaded_steps.h): on a GPU and the host beside it, or on two cores, of which
// one is the device, one the host, and what passes between them is copied at a stated rate. A model
// of random weights, whose keys and values were never computed. On two cores each step's logits
// must be those of the same step with everything resident, bit by bit; on a GPU those of all orders
// that attend on the same side must be the same bits, and those of orders that attend on the host
// come close to the resident step on the CPU (--resident). Predictions are made, and printed,
// before the first step that is measured:
//   build/release/offload_bench --sequences 256 --micro-batches 4 --context 512 --link 1.2
//   build/cuda/offload_bench --device cuda --device-memory-budget 15 --layers 32 --hidden 4096
//     --heads 32 --kv-heads 8 --experts 8 --top-k 2 --intermediate 14336 --vocab 32000
//     --weights bf16 --sequences 1024 --micro-batches 8 --context 141 --orders cgo s2 s3
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/median.h"
#include "bench/results_file.h"
#include "cost/rates.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda.h"
#include "drawing/trace.h"
#include "evaluate/invented_model.h"
#include "evaluate/step_case.h"
#include "kernels/choose_kernels.h"
#include "runtime/formats.h"
#include "runtime/offloaded_steps.h"
#include "runtime/transformer.h"
#include "simulate/simulate.h"

namespace convene::bench {
namespace {

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
  std::vector<int> host_cpus = {1};
  // Of a GPU alone:
  std::string device = "cpu";
  double device_gib = 0;  // 0: all that is free
  int pinned_pages = 3;
  std::vector<int> staging_cpus;
  bool resident = false;
  std::vector<std::string> orders;
  std::string trace;
  std::string json;
};

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Small bf16 numbers, all different; a layer by each thread.
void FillLayers(device::KvCache& cache, std::atomic<int>& next) {
  for (int layer = next++; layer < cache.num_layers(); layer = next++) {
    uint64_t state = static_cast<uint64_t>(layer) * 2 + 1;
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

void FillCache(device::KvCache& cache) {
  std::atomic<int> next = 0;
  std::vector<std::jthread> threads;
  for (unsigned i = 1; i < std::clamp(std::thread::hardware_concurrency(), 1u, 16u); ++i) {
    threads.emplace_back([&] { FillLayers(cache, next); });
  }
  FillLayers(cache, next);
}

// What tasks cost alone on this machine: by kind, pages by their bytes.
struct Calibration {
  std::map<TaskKind, double> seconds;
  double staged_bytes_per_second = 0;
  double load_bytes_per_second = 0;
};

struct Order {
  OffloadOrder order = OffloadOrder::kCgo;
  std::optional<runtime::Transformer> steps = {};
  schedule::Timeline predicted = {};
  std::vector<double> seconds = {};  // by round
  schedule::Timeline measured = {};  // of the last round
};

// The largest difference of a sequence's logits to what they should be, relative to their norm.
double Difference(std::span<const float> logits, std::span<const float> expected) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    difference += (logits[i] - expected[i]) * (logits[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

class Study {
 public:
  explicit Study(const Options& options)
      : options_(options),
        formats_(runtime::DefaultFormats(*kernels::WeightFormatFromName(options.weights))),
        host_pool_(options.host_cpus),
        device_pool_({options.device_cpu}),
        host_(device::MakeCpuDevice(**kernels::ChooseKernels(), host_pool_)),
        sequences_(step_case(), /*num_groups=*/1, options.shape.vocab, /*seed=*/1) {
    if (!options.staging_cpus.empty()) staging_pool_.emplace(options.staging_cpus);
  }

  Status Run() {
    for (const std::string& path : {options_.json, options_.trace}) {
      if (Status opened = CheckResultsFile(path); !opened) return opened;
    }
    if (const Status created = CreateDevice(); !created) return created;
    if (const Status created = CreateModel(); !created) return created;
    for (const std::string& name : options_.orders) {
      const OffloadOrder order = *strategy::OffloadOrderNamed(name);
      if (const Status created = CreateCache(order); !created) return created;
      orders_.emplace_back(Order{.order = order});
    }
    if (const Status calibrated = Calibrate(); !calibrated) return calibrated;
    for (Order& order : orders_) {
      auto steps = Create(order.order, LinkRate());
      if (!steps) return steps.error();
      order.steps.emplace(*std::move(steps));
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
    const Status json = WriteJson();
    const Status trace = WriteTrace();
    return json ? trace : json;
  }

 private:
  // What orders have in common that attend on the same side.
  struct Side {
    std::unique_ptr<device::KvCache> own_cache = {};
    device::KvCache* cache = nullptr;
    std::vector<std::vector<float>> logits = {};  // by sequence; empty: of the first step
    Calibration calibration = {};
  };

  evaluate::StepCase step_case() const {
    return {.batch = options_.sequences, .tokens = 1, .context = options_.context};
  }
  std::span<const device::SequenceStep> step() const { return sequences_.step(); }
  bool on_gpu() const { return options_.device == "cuda"; }
  // A GPU's link has its own rate.
  double LinkRate() const { return on_gpu() ? 0 : options_.link_gb_per_second * 1e9; }
  Side& SideOf(OffloadOrder order) { return sides_[on_gpu() && !strategy::AttendsOnHost(order)]; }

  Status CreateDevice() {
    if (!on_gpu()) {
      device_ = device::MakeCpuDevice(**kernels::ChooseKernels(), device_pool_);
      return {};
    }
    auto device = device::MakeCudaDevice(/*gpu=*/0, &device_pool_);
    if (!device) return device.error();
    device_ = *std::move(device);
    pinned_.emplace(memory::Tier{.kind = memory::TierKind::kPinned});
    return {};
  }
  memory::Ledger& host_ledger() { return on_gpu() ? *pinned_ : ledger_; }

  // Of each order its own: one at a time would run. What measures tasks alone may have all.
  Result<memory::Ledger*> DeviceLedger(bool is_serial) {
    if (!on_gpu()) return &ledger_;
    auto tier = memory::DeviceTier(/*gpu=*/0, /*num_ranks=*/1);
    if (!tier) return tier.error();
    if (options_.device_gib > 0 && !is_serial) {
      tier->budget_bytes = static_cast<uint64_t>(options_.device_gib * (1 << 30));
      tier->limited_by = "--device-memory-budget";
    }
    return &device_ledgers_.emplace_back(*tier);
  }

  Status CreateModel() {
    const auto start = Clock::now();
    auto model = evaluate::InventedModel::Create(evaluate::InventSpec(options_.shape),
                                                 formats_.weights, {1, 1, 1, 1}, 0, host_ledger());
    if (!model) return model.error();
    model_ = *std::move(model);
    fmt::print("made a model of {:.2f} GB in {:.1f} s\n",
               static_cast<double>(host_ledger().reserved().total()) / 1e9, SecondsSince(start));
    std::fflush(stdout);
    return {};
  }

  // Keys and values between steps, on the host, and on two cores what a resident step makes of
  // them.
  Status CreateCache(OffloadOrder order) {
    Side& side = SideOf(order);
    if (side.cache != nullptr) return {};
    const int num_blocks = evaluate::NumKvBlocks(step_case(), 1);
    if (!on_gpu() || (options_.resident && strategy::AttendsOnHost(order))) {
      auto resident = runtime::Transformer::Create(model_->weights(), *host_,
                                                   {.max_step_tokens = options_.sequences,
                                                    .num_kv_blocks = num_blocks,
                                                    .context = options_.context + 1,
                                                    .activations = formats_.activations,
                                                    .kv = formats_.kv},
                                                   ledger_);
      if (!resident) return resident.error();
      resident_.emplace(*std::move(resident));
      side.cache = &resident_->kv_cache();
      FillCache(*side.cache);
      auto& logits = on_gpu() ? resident_logits_ : side.logits;
      return resident_->Forward(step(), [&](int, int, std::span<const float> of_sequence) {
        logits.emplace_back(of_sequence.begin(), of_sequence.end());
      });
    }
    auto cache =
        strategy::AttendsOnHost(order)
            ? host_->CreateKvCache(model_->whole_spec(), formats_.kv, num_blocks, ledger_)
            : device_->CreateKvCache(model_->whole_spec(), formats_.kv, num_blocks, host_ledger());
    if (!cache) return cache.error();
    side.own_cache = *std::move(cache);
    side.cache = side.own_cache.get();
    FillCache(*side.cache);
    return {};
  }

  Result<runtime::Transformer> Create(OffloadOrder order, double link, bool is_serial = false) {
    auto ledger = DeviceLedger(is_serial);
    if (!ledger) return ledger.error();
    std::vector<int> cpus = options_.host_cpus;
    cpus.insert(cpus.begin(), options_.device_cpu);
    auto steps = runtime::OffloadedSteps::Create(
        model_->model_weights(), *device_, *host_, *SideOf(order).cache,
        {.pipeline = {.order = order,
                      .micro_batches = options_.micro_batches,
                      .pinned_pages = options_.pinned_pages,
                      .loads_behind = is_serial,
                      .bytes = ElementBytes()},
         .link_bytes_per_second = link,
         .max_sequences = options_.sequences,
         .context = options_.context + 1,
         .activations = formats_.activations,
         .kv = formats_.kv,
         .cpus = {.compute = cpus, .host = options_.host_cpus},
         .staging = staging_pool_ ? &*staging_pool_ : nullptr},
        {**ledger, host_ledger()});
    if (!steps) return steps.error();
    return runtime::Transformer::Offload(*std::move(steps));
  }
  strategy::ElementBytes ElementBytes() const {
    return runtime::Transformer::BytesOf(model_->whole_spec(), formats_, comm::WireFormat::kBf16,
                                         false);
  }

  // Every task alone: layer by layer nothing runs beside another task, and without a link's limit
  // that is soon done. On a GPU also with attention on the host and layers loaded one behind the
  // other.
  Status Calibrate() {
    for (Order& order : orders_) {
      Side& side = SideOf(order.order);
      if (!side.calibration.seconds.empty()) continue;
      const bool on_host = on_gpu() && strategy::AttendsOnHost(order.order);
      Order serial{.order = on_host ? OffloadOrder::kS3 : OffloadOrder::kLayerwise};
      if (const Status ran = RunAlone(serial, side.calibration); !ran) return ran;
      if (options_.pinned_pages > 0) {
        if (const Status measured = MeasureStaging(side.calibration); !measured) return measured;
      }
    }
    return {};
  }

  Status RunAlone(Order& serial, Calibration& calibration) {
    auto steps = Create(serial.order, 0, /*is_serial=*/true);
    if (!steps) return steps.error();
    serial.steps.emplace(*std::move(steps));
    std::map<TaskKind, std::vector<double>> seconds;
    for (int i = 0; i < 3; ++i) {
      if (const Status ran = RunStep(serial, /*counts=*/false); !ran) return ran;
      if (i == 0) continue;
      const std::vector<schedule::Task>& tasks = serial.steps->schedule().tasks;
      for (size_t id = 0; id < tasks.size(); ++id) {
        seconds[tasks[id].kind].push_back(serial.steps->timeline().tasks[id].seconds());
      }
    }
    // A GPU's first micro-batch of a layer unpacks its weights: only the mean has its share.
    for (auto& [kind, all] : seconds) {
      calibration.seconds[kind] = on_gpu() ? Mean(all) : Median(all);
    }
    calibration.load_bytes_per_second =
        on_gpu() ? LayerBytes() / calibration.seconds[TaskKind::kLoadPage] : LinkRate();
    return {};
  }

  // Of a layer's experts, as a page's copy would.
  Status MeasureStaging(Calibration& calibration) {
    constexpr size_t kPieceBytes = size_t{1} << 20;
    std::vector<std::span<const std::byte>> pieces;
    for (const weights::FfnWeights& expert : FirstExperts()) {
      for (const kernels::PackedMatrix* matrix : {&expert.up, &expert.down}) {
        for (size_t at = 0; at < matrix->size_bytes(); at += kPieceBytes) {
          pieces.emplace_back(matrix->data + at, std::min(kPieceBytes, matrix->size_bytes() - at));
        }
      }
    }
    auto memory = host_ledger().Allocate(memory::Use::kStaging, pieces.size() * kPieceBytes);
    if (!memory) return memory.error();
    const auto copy = [&](int64_t index, int) {
      const auto i = static_cast<size_t>(index);
      std::memcpy(memory->data() + i * kPieceBytes, pieces[i].data(), pieces[i].size());
    };
    std::vector<double> seconds;
    for (int i = 0; i < 4; ++i) {
      const auto start = Clock::now();
      if (staging_pool_) {
        staging_pool_->ParallelFor(std::ssize(pieces), copy);
      } else {
        for (int64_t index = 0; index < std::ssize(pieces); ++index) copy(index, 0);
      }
      if (i > 0) seconds.push_back(SecondsSince(start));
    }
    calibration.staged_bytes_per_second = LayerBytes() / Median(seconds);
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
  schedule::Timeline Predict(const Order& order) {
    schedule::Schedule schedule = order.steps->schedule();
    const Calibration& calibration = SideOf(order.order).calibration;
    cost::Rates rates;
    // Rows of a micro-batch are few beside pages: a GPU's link takes longer for them than its rate
    // says.
    const auto is_fixed = [&](TaskKind kind) {
      return !schedule::IsCommunication(kind) ||
             (on_gpu() && (kind == TaskKind::kSendQkv || kind == TaskKind::kSendHidden));
    };
    for (const auto& [kind, seconds] : calibration.seconds) {
      if (is_fixed(kind)) rates.fixed_seconds[static_cast<size_t>(kind)] = seconds;
    }
    if (calibration.staged_bytes_per_second > 0) {
      rates.fixed_seconds[static_cast<size_t>(TaskKind::kStagePage)] =
          LayerBytes() / options_.micro_batches / calibration.staged_bytes_per_second;
    }
    rates.ranks.front().load_bytes_per_second = calibration.load_bytes_per_second;
    rates.ranks.front().store_bytes_per_second = calibration.load_bytes_per_second;
    for (schedule::Task& task : schedule.tasks) {
      if (task.kind == TaskKind::kStagePage || is_fixed(task.kind)) task.work = {};
    }
    const double tokens = static_cast<double>(options_.sequences) / options_.micro_batches;
    return simulate::Simulate(schedule, rates, [&](const schedule::Size& size) {
      return size.kind == SizeKind::kKeys ? tokens * (options_.context + 1) : tokens;
    });
  }

  Status RunStep(Order& order, bool counts) {
    ForgetNewPositions(*SideOf(order.order).cache);
    std::vector<std::vector<float>>& expected = SideOf(order.order).logits;
    const bool is_first = expected.empty();
    if (is_first) expected.resize(static_cast<size_t>(options_.sequences));
    size_t num_same = 0;
    const auto start = Clock::now();
    const Status done =
        order.steps->Forward(step(), [&](int sequence, int, std::span<const float> logits) {
          std::vector<float>& here = expected[static_cast<size_t>(sequence)];
          if (is_first) here.assign(logits.begin(), logits.end());
          num_same += std::ranges::equal(logits, here) ? 1 : 0;
        });
    const double seconds = SecondsSince(start);
    if (!done) return done;
    if (num_same != expected.size()) {
      return Error{fmt::format("{}: the logits of {} of {} sequences are those of the {} step",
                               strategy::Name(order.order), num_same, expected.size(),
                               on_gpu() ? "first" : "resident")};
    }
    if (!counts) return {};
    order.seconds.push_back(seconds);
    order.measured = order.steps->timeline();
    return {};
  }

  // So that a step that does not write them is found out.
  void ForgetNewPositions(device::KvCache& cache) const {
    for (const device::SequenceStep& sequence : step()) {
      if (sequence.first_position % device::kKvBlockTokens != 0) continue;
      for (int layer = 0; layer < cache.num_layers(); ++layer) {
        std::memset(cache.Address(layer, sequence.blocks.back()), 0x3c,
                    static_cast<size_t>(cache.BlockBytes(layer)));
      }
    }
  }

  void PrintPredictions() {
    const evaluate::ModelShape& shape = options_.shape;
    fmt::print(
        "{} layers of {} experts x {} x {}, top {}, {} weights: {:.1f} MB streamed of each; "
        "{} sequences behind {} tokens, {} micro-batches, {}\n",
        shape.layers, shape.experts, shape.hidden, shape.intermediate, shape.top_k,
        options_.weights, LayerBytes() / 1e6, options_.sequences, options_.context,
        options_.micro_batches,
        on_gpu() ? device_->name() : fmt::format("link {} GB/s", options_.link_gb_per_second));
    for (const Side& side : sides_) {
      for (const auto& [kind, seconds] : side.calibration.seconds) {
        fmt::print("  {}: {:.3f} ms alone\n", schedule::Name(kind), 1e3 * seconds);
      }
      if (side.calibration.staged_bytes_per_second > 0) {
        fmt::print("  staging: {:.2f} GB/s alone\n",
                   side.calibration.staged_bytes_per_second / 1e9);
      }
      if (side.calibration.load_bytes_per_second > 0) {
        fmt::print("  link: {:.2f} GB/s\n", side.calibration.load_bytes_per_second / 1e9);
      }
    }
    for (const Order& order : orders_) {
      fmt::print("predicted {:9} {:.3f} s\n", strategy::Name(order.order),
                 order.predicted.seconds());
    }
    for (const memory::Ledger& ledger : device_ledgers_) {
      if (ledger.reserved().total() > 0) fmt::print("device memory: {}\n", ledger.Describe());
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
    if (!on_gpu()) {
      fmt::print("logits of all steps: those of the resident step, bit by bit\n");
      return;
    }
    fmt::print("logits of all steps that attend on the same side: the same, bit by bit\n");
    if (resident_logits_.empty()) return;
    std::vector<double> differences;
    const auto& logits = sides_[0].logits;
    for (size_t i = 0; i < logits.size(); ++i) {
      differences.push_back(Difference(logits[i], resident_logits_[i]));
    }
    fmt::print(
        "beside the resident step on the CPU, of their norm: median {:.5f}, worst {:.5f} of {} "
        "sequences\n",
        Median(differences), *std::ranges::max_element(differences), differences.size());
  }

  Status WriteJson() const {
    nlohmann::json orders;
    for (const Order& order : orders_) {
      orders.push_back({{"order", strategy::Name(order.order)},
                        {"predicted_seconds", order.predicted.seconds()},
                        {"seconds", order.seconds}});
    }
    const nlohmann::json figures = {{"sequences", options_.sequences},
                                    {"micro_batches", options_.micro_batches},
                                    {"context", options_.context},
                                    {"layers", options_.shape.layers},
                                    {"weights", options_.weights},
                                    {"link_gb_per_second", options_.link_gb_per_second},
                                    {"orders", orders}};
    return WriteResultsFile(options_.json, figures.dump(2) + "\n");
  }

  Status WriteTrace() const {
    if (options_.trace.empty()) return {};
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
    return WriteResultsFile(options_.trace, drawing::TraceJson(trace));
  }

  Options options_;
  runtime::Formats formats_;
  hardware::ThreadPool host_pool_;
  hardware::ThreadPool device_pool_;
  std::optional<hardware::ThreadPool> staging_pool_;
  memory::Ledger ledger_;
  std::optional<memory::Ledger> pinned_;  // the host's, of a GPU
  std::deque<memory::Ledger> device_ledgers_;
  std::unique_ptr<device::Device> host_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<evaluate::InventedModel> model_;
  std::optional<runtime::Transformer> resident_;
  evaluate::CaseSequences sequences_;
  std::vector<std::vector<float>> resident_logits_;  // of the CPU beside a GPU
  // Where attention is on the host, and where it is on a GPU; of two cores all orders are in the
  // first.
  std::array<Side, 2> sides_;
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
  app.add_option("--host-cpus", options.host_cpus)->delimiter(',')->capture_default_str();
  app.add_option("--device", options.device, "cuda: a GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--device-memory-budget", options.device_gib, "GiB of a GPU for each order");
  app.add_option("--pinned-pages", options.pinned_pages,
                 "0: the weights are pinned, and cgo stages nothing")
      ->capture_default_str();
  app.add_option("--staging-cpus", options.staging_cpus, "share the copies to pinned memory")
      ->delimiter(',');
  app.add_flag("--resident", options.resident,
               "on a GPU: compare with the same step on the CPU, everything resident");
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
