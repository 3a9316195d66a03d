#include "runtime/measure_ranks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/agree.h"
#include "device/expert_rows.h"
#include "kernels/grouped_gemm.h"
#include "runtime/executor.h"

namespace convene::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using schedule::LaneKind;
using schedule::TaskKind;

// Rows per expert: what reads weights; and two loads between which time grows with rows.
constexpr int kFewRows = 1;
constexpr int kSomeRows = 32;
constexpr int kManyRows = 128;
constexpr int kMostExperts = 32;   // of the first load
constexpr int kExpertsOfMany = 8;  // of the others
constexpr int kRepeats = 5;
constexpr double kNever = std::numeric_limits<double>::infinity();
// Beyond these it was noise: no core moves less than 250 MB/s, and a background thread looks twice
// within a millisecond (executor.cc).
constexpr double kMostCoreSecondsPerByte = 4e-9;
constexpr double kMostSecondsLater = 1e-3;
constexpr int kTinyExchanges = 20;
constexpr size_t kTinyBytes = 64;
constexpr size_t kFirstBytes = size_t{1} << 18;  // from which the size of the others follows
constexpr size_t kMostBytes = size_t{1} << 23;
constexpr double kExchangeSeconds = 0.04;  // that the larger exchanges should take
constexpr int kPieces = 4;                 // exchanges beside computing

double Least(int repeats, const std::function<double()>& seconds) {
  double least = seconds();
  for (int i = 1; i < repeats; ++i) least = std::min(least, seconds());
  return least;
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Products of a layer's experts on invented rows.
class ExpertProducts {
 public:
  static Result<ExpertProducts> Create(const model::LayerSpec& layer,
                                       const std::vector<weights::FfnWeights>& experts,
                                       const kernels::KernelSet& kernels,
                                       hardware::ThreadPool& pool, kernels::ActivationFormat format,
                                       memory::Ledger& ledger) {
    ExpertProducts products(layer, experts, kernels, pool, format);
    const weights::FfnWeights& expert = experts.front();
    const int64_t num_rows = std::max(kManyRows * kExpertsOfMany, kFewRows * kMostExperts);
    const int64_t in_bytes =
        num_rows * kernels::ActivationRowBytes(format, std::max(expert.up.cols, expert.down.cols));
    const int64_t out_bytes = num_rows * 4 * std::max(expert.up.rows, expert.down.rows);
    Result<memory::Reservation> memory = ledger.Allocate(
        memory::Use::kStaging,
        static_cast<uint64_t>(in_bytes + out_bytes + kernels::kGemmScratchBytes * pool.size()));
    if (!memory) return memory.error();
    // Small numbers in all formats, so that nothing becomes a denormal product.
    std::memset(memory->data(), 0x3c, memory->size_bytes());
    products.out_ = memory->data() + in_bytes;
    products.scratch_ = products.out_ + out_bytes;
    products.memory_ = *std::move(memory);
    return products;
  }

  int num_experts() const { return static_cast<int>(experts_.size()); }
  double weight_bytes() const {
    const weights::FfnWeights& expert = experts_.front();
    return static_cast<double>(expert.up.size_bytes() + expert.down.size_bytes());
  }
  double flops_per_row() const {
    const weights::FfnWeights& expert = experts_.front();
    return 2.0 * expert.up.rows * expert.up.cols + 2.0 * expert.down.rows * expert.down.cols;
  }

  // `count` experts from `first` on, with so many rows each.
  double Seconds(int first, int count, int rows_each) {
    const auto start = Clock::now();
    const kernels::Epilogue epilogue =
        layer_.moe->activation.kind == model::Activation::kRelu ? kernels::Epilogue::kRelu
        : layer_.moe->activation.kind == model::Activation::kClampedSwiglu
            ? kernels::Epilogue::kClampedSwiglu
            : kernels::Epilogue::kSiluMul;
    const weights::FfnWeights& expert = experts_.front();
    const auto made = format_ == kernels::ActivationFormat::kBf16 ? kernels::ActivationFormat::kBf16
                                                                  : kernels::ActivationFormat::kF32;
    Run(first, count, rows_each, &weights::FfnWeights::up, epilogue, made,
        kernels::ActivationRowBytes(made, expert.down.cols));
    Run(first, count, rows_each, &weights::FfnWeights::down, kernels::Epilogue::kStore, made,
        int64_t{4} * expert.down.rows);
    return SecondsSince(start);
  }

 private:
  ExpertProducts(const model::LayerSpec& layer, const std::vector<weights::FfnWeights>& experts,
                 const kernels::KernelSet& kernels, hardware::ThreadPool& pool,
                 kernels::ActivationFormat format)
      : layer_(layer), experts_(experts), kernels_(kernels), pool_(pool), format_(format) {}

  void Run(int first, int count, int rows_each, kernels::PackedMatrix weights::FfnWeights::*matrix,
           kernels::Epilogue epilogue, kernels::ActivationFormat made, int64_t out_stride) {
    std::vector<kernels::GemmGroup> groups;
    for (int i = 0; i < count; ++i) {
      const weights::FfnWeights& expert =
          experts_[static_cast<size_t>((first + i) % num_experts())];
      groups.push_back(
          {.weights = &(expert.*matrix), .first_row = i * rows_each, .num_rows = rows_each});
    }
    kernels::RunGroupedGemm(
        kernels_, pool_,
        {.groups = groups,
         .activations = format_,
         .rows = memory_.data(),
         .row_stride = kernels::ActivationRowBytes(format_, (experts_.front().*matrix).cols),
         .epilogue = epilogue,
         .out_format = made,
         .out = out_,
         .out_stride = out_stride,
         .scratch = scratch_});
  }

  const model::LayerSpec& layer_;
  const std::vector<weights::FfnWeights>& experts_;
  const kernels::KernelSet& kernels_;
  hardware::ThreadPool& pool_;
  kernels::ActivationFormat format_;
  memory::Reservation memory_;
  std::byte* out_ = nullptr;
  std::byte* scratch_ = nullptr;
};

// Exchanges of one size among all ranks, and something to compute, run as a step runs them.
class Trial : public LaneWork {
 public:
  Trial(comm::Group& group, hardware::ThreadPool& pool)
      : group_(group), waiting_(false, {pool.cpus()}), beside_(true, {pool.cpus()}) {}

  // Before the first run. Errors: no memory; the thread beside computation cannot be started.
  Status Prepare(memory::Ledger& ledger) {
    // One peer's part out, and one of each rank in: the most with two ranks.
    Result<memory::Reservation> reserved = ledger.Reserve(memory::Use::kStaging, 3 * kMostBytes);
    if (!reserved) return reserved.error();
    reserved_ = *std::move(reserved);
    return beside_.StartBackground();
  }

  struct Seconds {
    double computing = 0;   // until it ended
    double exchanging = 0;  // likewise
  };

  // `num_exchanges` one after the other, each of so many bytes to all other ranks together.
  // Without `compute` they are waited for.
  Seconds Run(int num_exchanges, size_t bytes, const std::function<void()>& compute) {
    compute_ = compute;
    bytes_per_peer_ = bytes / static_cast<size_t>(group_.size() - 1);
    out_.resize(std::max(out_.size(), bytes_per_peer_));
    in_.resize(std::max(in_.size(), bytes_per_peer_ * static_cast<size_t>(group_.size())));
    schedule::Schedule step;
    for (int i = 0; i < num_exchanges; ++i) {
      step.tasks.push_back(
          {.kind = TaskKind::kDispatch, .lane = {0, LaneKind::kSend}, .collective = i});
    }
    const auto last = static_cast<schedule::TaskId>(step.tasks.size()) - 1;
    if (compute) {
      step.tasks.push_back({.kind = TaskKind::kExperts, .lane = {0, LaneKind::kCompute}});
    }
    step.tasks.push_back({.kind = TaskKind::kFinish, .lane = {0, LaneKind::kCompute}});
    if (last >= 0) step.tasks.back().after = {last};
    const RankProgram program(step, 0);
    Executor& executor = compute ? beside_ : waiting_;
    group_.Barrier("measuring an exchange");
    const Status done = executor.Run(program, *this);
    CHECK(done.ok(), "an exchange fails by ending the job");
    const auto& times = executor.timeline().tasks;
    Seconds seconds;
    if (last >= 0) seconds.exchanging = times[last].end;
    if (compute) seconds.computing = times[last + 1].end;
    return seconds;
  }

  void Compute(const schedule::Task& task) override {
    if (task.kind == TaskKind::kExperts) compute_();
  }

  std::unique_ptr<comm::Exchange> Start(const schedule::Task&) override {
    std::vector<std::span<const std::byte>> send(static_cast<size_t>(group_.size()));
    std::vector<std::span<std::byte>> receive(send.size());
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (rank == group_.rank()) continue;
      send[rank] = std::span(out_).first(bytes_per_peer_);
      receive[rank] = std::span(in_).subspan(bytes_per_peer_ * rank, bytes_per_peer_);
    }
    return group_.StartAllToAll(device::kDispatchQueue, send, receive, "measuring an exchange");
  }

 private:
  comm::Group& group_;
  Executor waiting_;
  Executor beside_;
  std::function<void()> compute_;
  size_t bytes_per_peer_ = 0;
  memory::Reservation reserved_;  // of the next two
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

// Rank 0's.
size_t Agreed(comm::Group& group, size_t value) {
  std::vector<std::byte> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  group.Broadcast(0, &bytes, "agreeing on what to measure");
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// The least seconds of an expert at each load so far. Cores may be slow for a second and fast in
// the next, so that loads take turns.
struct ExpertSeconds {
  double few = kNever;
  double some = kNever;
  double many = kNever;
};

void MeasureProducts(comm::Group& group, ExpertProducts& products, ExpertSeconds& least) {
  const int all = std::min(kMostExperts, products.num_experts());
  const int count = std::min(kExpertsOfMany, products.num_experts());
  for (int i = 0; i < kRepeats; ++i) {
    group.Barrier("measuring products");  // ranks share the memory of their host
    least.few = std::min(least.few, products.Seconds(0, all, kFewRows) / all);
    least.some = std::min(least.some, products.Seconds(i * count, count, kSomeRows) / count);
    least.many = std::min(least.many, products.Seconds(i * count, count, kManyRows) / count);
  }
}

void FitProducts(const ExpertProducts& products, const ExpertSeconds& seconds,
                 RankMeasurement& found) {
  found.weight_bytes_per_second = products.weight_bytes() / seconds.few;
  const double per_row = std::max((seconds.many - seconds.some) / (kManyRows - kSomeRows),
                                  seconds.many / kManyRows / 4);
  found.flops_per_second = products.flops_per_row() / per_row;
  found.rows_per_expert = std::max(0.0, seconds.many / per_row - kManyRows);
}

void MeasureExchanges(comm::Group& group, Trial& trial, ExpertProducts& products,
                      RankMeasurement& found) {
  trial.Run(1, kFirstBytes, {});  // opens connections
  found.exchange_seconds = Least(kRepeats, [&] {
    return trial.Run(kTinyExchanges, kTinyBytes, {}).exchanging / kTinyExchanges;
  });
  const double first = trial.Run(1, kFirstBytes, {}).exchanging;
  const double wanted = static_cast<double>(kFirstBytes) * kExchangeSeconds / first;
  const size_t bytes =
      Agreed(group, static_cast<size_t>(std::clamp(wanted, 1.0 * kFirstBytes, 1.0 * kMostBytes)));
  const double alone = trial.Run(kPieces, bytes / kPieces, {}).exchanging;
  const auto sent = static_cast<double>(bytes);
  found.link_bytes_per_second =
      sent / std::max(alone - found.exchange_seconds * kPieces, alone / 2);

  // So much to compute that the exchanges end meanwhile.
  const int experts = std::min(kExpertsOfMany, products.num_experts());
  const double pass = products.Seconds(0, experts, kManyRows);
  const size_t passes = Agreed(group, static_cast<size_t>(std::ceil(1.5 * alone / pass)));
  const auto compute = [&] {
    for (size_t i = 0; i < passes; ++i) products.Seconds(static_cast<int>(i), experts, kManyRows);
  };
  Trial::Seconds both{kNever, kNever};
  double computing = kNever;
  double waiting = alone;
  for (int i = 0; i < kRepeats; ++i) {
    computing = std::min(computing, trial.Run(0, 0, compute).computing);
    const Trial::Seconds now = trial.Run(kPieces, bytes / kPieces, compute);
    both = {std::min(both.computing, now.computing), std::min(both.exchanging, now.exchanging)};
    waiting = std::min(waiting, trial.Run(kPieces, bytes / kPieces, {}).exchanging);
  }
  found.link_bytes_per_second =
      sent / std::max(waiting - found.exchange_seconds * kPieces, waiting / 2);
  found.link_core_seconds_per_byte =
      std::clamp((both.computing - computing) / sent, 0.0, kMostCoreSecondsPerByte);
  found.exchange_seconds_beside =
      found.exchange_seconds +
      std::clamp((both.exchanging - waiting) / kPieces, 0.0, kMostSecondsLater);
}

}  // namespace

Result<RankMeasurement> MeasureRank(comm::Group& group, weights::WeightStore& weights,
                                    const kernels::KernelSet& kernels, hardware::ThreadPool& pool,
                                    const Formats& formats, memory::Ledger& ledger) {
  const auto& layers = weights.spec().layers;
  const auto layer = std::find_if(layers.begin(), layers.end(),
                                  [](const model::LayerSpec& one) { return one.moe.has_value(); });
  CHECK(layer != layers.end() && group.size() > 1, "nothing to measure");
  const weights::LayerId id{.layer = static_cast<int>(layer - layers.begin())};
  std::vector<int> experts(static_cast<size_t>(weights.Experts(id).size));
  std::iota(experts.begin(), experts.end(), 0);
  const auto leased = weights.LeaseExperts(id, experts);
  Result<ExpertProducts> products =
      leased ? ExpertProducts::Create(*layer, **leased, kernels, pool, formats.activations, ledger)
             : Result<ExpertProducts>(leased.error());
  Trial trial(group, pool);
  const Status mine = products ? trial.Prepare(ledger) : Status(products.error());
  if (const Status all = comm::AgreeOnSuccess(group, mine); !all) return all.error();
  RankMeasurement found{.cores = pool.size()};
  ExpertSeconds seconds;
  MeasureProducts(group, *products, seconds);
  MeasureExchanges(group, trial, *products, found);
  MeasureProducts(group, *products, seconds);
  FitProducts(*products, seconds, found);
  return found;
}

}  // namespace convene::runtime
