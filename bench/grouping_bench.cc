// Times the grouping of rows for experts alone: what it takes to divide a layer's rows among
// destinations and chunks, to sort what arrives by chunk and expert, and to list what returns. No
// row is copied and nothing is multiplied. Two ranks, as threads of this process, which group in
// turn, so that each has its cores to itself:
//   build/release/grouping_bench --tokens 512,2048 --experts 64 --chunks 16
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "comm/threads/thread_group.h"
#include "device/expert_rows.h"
#include "hardware/thread_pool.h"
#include "strategy/expert_pipeline.h"
#include "strategy/layout.h"

namespace convene::bench {
namespace {

using device::ExpertRows;
using strategy::ChunkCut;
using strategy::Pipeline;

constexpr int kRanks = 2;

struct Options {
  std::vector<int> tokens = {512, 2048};  // of each rank
  std::vector<int> experts = {64, 128};
  std::vector<int> chunks = {1, 16};
  int top_k = 8;
  int threads = 1;  // of each rank
  int repeats = 51;
};

// Microseconds of one layer.
struct Times {
  double begin = 0;
  double select = 0;
  double returns = 0;

  double sum() const { return begin + select + returns; }
};

class Layer {
 public:
  Layer(const Options& options, const Pipeline& pipeline, int num_tokens, int num_experts,
        comm::Group& group, hardware::ThreadPool& pool)
      : pipeline_(pipeline),
        group_(group),
        pool_(pool),
        num_experts_(num_experts),
        top_k_(options.top_k),
        rows_options_(OptionsOf(num_tokens)),
        storage_(static_cast<size_t>(ExpertRows::MemoryBytes(rows_options_))),
        memory_(storage_),
        rows_(rows_options_, &group, memory_) {
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    std::vector<int32_t> all(static_cast<size_t>(num_experts));
    std::iota(all.begin(), all.end(), 0);
    for (int row = 0; row < num_tokens; ++row) {
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + top_k_);
      experts_.insert(experts_.end(), all.begin(), all.begin() + top_k_);
    }
    weights_.assign(experts_.size(), 1.0f / static_cast<float>(top_k_));
  }

  Times Run() {
    Times times;
    rows_.Use(rows_options_.roles, pipeline_);
    Add(times.begin, [&] { rows_.Begin(0, num_experts_, top_k_, experts_, weights_); });
    Complete(rows_.StartCounts());
    const bool by_tokens = pipeline_.chunks > 1 && pipeline_.cut == ChunkCut::kTokens;
    const auto select = [&](int chunk) { Add(times.select, [&] { rows_.Select(chunk); }); };
    if (by_tokens) select(strategy::OwnChunk(pipeline_, 0));
    for (int chunk = 0; chunk < pipeline_.chunks; ++chunk) {
      Complete(rows_.StartDispatch(chunk));
      select(chunk);
      Add(times.returns, [&] { rows_.Returns(chunk); });
      Complete(rows_.StartCombine(chunk));
    }
    if (by_tokens) select(strategy::OwnChunk(pipeline_, 1));
    return times;
  }

 private:
  ExpertRows::Options OptionsOf(int num_tokens) const {
    const strategy::Layout layout{1, kRanks, kRanks, 1};
    return {.roles = layout,
            .pipeline = pipeline_,
            .rank = group_.rank(),
            .dispatch_row_bytes = 4,
            .return_row_bytes = 4,
            .most_rows = num_tokens,
            .most_padded_rows = num_tokens,
            .most_pairs = int64_t{num_tokens} * top_k_,
            .pool = &pool_};
  }

  template <typename F>
  void Add(double& microseconds, F&& f) {
    static std::mutex turn;
    const std::lock_guard lock(turn);
    pool_.Run([](int) {});
    const auto start = std::chrono::steady_clock::now();
    f();
    microseconds +=
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }

  static void Complete(const std::unique_ptr<comm::Exchange>& exchange) {
    while (!exchange->Test()) std::this_thread::yield();
  }

  Pipeline pipeline_;
  comm::Group& group_;
  hardware::ThreadPool& pool_;
  int num_experts_;
  int top_k_;
  ExpertRows::Options rows_options_;
  std::vector<std::byte> storage_;
  device::ExchangeMemory memory_;
  ExpertRows rows_;
  std::vector<int32_t> experts_;
  std::vector<float> weights_;
};

void Measure(const Options& options, const Pipeline& pipeline, int num_tokens, int num_experts) {
  std::vector<Times> all;
  comm::RunOnThreads(kRanks, [&](comm::Group& group) {
    std::vector<int> cpus(static_cast<size_t>(options.threads));
    std::iota(cpus.begin(), cpus.end(), 0);
    hardware::ThreadPool pool(cpus);
    Layer layer(options, pipeline, num_tokens, num_experts, group, pool);
    for (int round = -1; round < options.repeats; ++round) {
      const Times times = layer.Run();
      if (round >= 0 && group.rank() == 0) all.push_back(times);
    }
  });
  std::sort(all.begin(), all.end(),
            [](const Times& a, const Times& b) { return a.sum() < b.sum(); });
  const Times& median = all[all.size() / 2];
  fmt::print(
      "{:5} tokens/rank, {} of {:3} experts, {:2} chunks of {:7}: begin {:6.1f} us, select {:7.1f} "
      "us, returns {:6.1f} us; {:5.2f} ns per pair\n",
      num_tokens, options.top_k, num_experts, pipeline.chunks,
      pipeline.cut == ChunkCut::kTokens ? "tokens" : "experts", median.begin, median.select,
      median.returns, median.sum() * 1e3 / (num_tokens * options.top_k));
}

int Main(int argc, char** argv) {
  CLI::App app("Times the grouping of rows for experts");
  Options options;
  app.add_option("--tokens", options.tokens, "Of each rank")->delimiter(',');
  app.add_option("--experts", options.experts)->delimiter(',');
  app.add_option("--chunks", options.chunks)->delimiter(',');
  app.add_option("--top-k", options.top_k);
  app.add_option("--threads", options.threads, "Of each rank");
  app.add_option("--repeat", options.repeats);
  CLI11_PARSE(app, argc, argv);
  for (const int num_tokens : options.tokens) {
    for (const int num_experts : options.experts) {
      for (const int chunks : options.chunks) {
        for (const ChunkCut cut : {ChunkCut::kTokens, ChunkCut::kExperts}) {
          if (chunks == 1 && cut == ChunkCut::kExperts) continue;
          Measure(options, {.chunks = chunks, .cut = cut}, num_tokens, num_experts);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace convene::bench

int main(int argc, char** argv) { return convene::bench::Main(argc, argv); }
