#include "evaluate/measure_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/message.h"
#include "comm/from_rank_zero.h"
#include "cost/fit_operator_model.h"
#include "engine/sampler.h"
#include "hardware/huge_buffer.h"
#include "hardware/measure_disk.h"

namespace convene::evaluate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMostBytes = uint64_t{64} << 20;  // of a copy

// One point of an operator: how to run it, and what it is.
struct Point {
  std::vector<double> features;
  double ideal_seconds = 0;
  std::function<void()> run;
};

double SecondsOfOperator(const std::function<void()>& run) {
  const auto start = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// All points in turn, again and again, since the machine's speed wanders: of each the median.
std::vector<cost::OperatorSample> RunInTurn(const std::vector<Point>& points, double budget_s) {
  constexpr int kFewestRounds = 3;
  constexpr int kMostRounds = 100;
  std::vector<std::vector<double>> seconds(points.size());
  for (const Point& point : points) point.run();
  const auto start = Clock::now();
  for (int round = 0; round < kMostRounds; ++round) {
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    if (round >= kFewestRounds && elapsed.count() > budget_s) break;
    for (size_t i = 0; i < points.size(); ++i)
      seconds[i].push_back(SecondsOfOperator(points[i].run));
  }
  std::vector<cost::OperatorSample> samples;
  for (size_t i = 0; i < points.size(); ++i) {
    std::ranges::sort(seconds[i]);
    samples.push_back({.features = points[i].features,
                       .ideal_seconds = points[i].ideal_seconds,
                       .seconds = std::max(seconds[i][seconds[i].size() / 2], 1e-9)});
  }
  return samples;
}

Status AddModel(std::string name, std::vector<std::string> features,
                std::span<const cost::OperatorSample> samples, OperatorModels& models) {
  Result<cost::OperatorModel> model = cost::FitOperatorModel(
      {.name = name, .source = "convene measure", .feature_names = std::move(features)}, samples);
  if (!model) return model.error();
  models.emplace(std::move(name), *std::move(model));
  return {};
}

// Powers of two up to the number of threads, and that one.
std::vector<int> ThreadCounts(int most) {
  std::vector<int> counts;
  for (int count = 1; count < most; count *= 2) counts.push_back(count);
  counts.push_back(most);
  return counts;
}

// Pieces lie apart in what is read, as a slice of a matrix does, and together in what is written.
Status MeasureMemory(hardware::ThreadPool& pool, const MeasureOperatorsOptions& options,
                     OperatorModels& models) {
  constexpr uint64_t kPieceBytes = uint64_t{1} << 13;
  const uint64_t most = std::max(kMostBytes, 2 * options.last_level_cache_bytes);
  const Result<hardware::HugeBuffer> from = hardware::HugeBuffer::Allocate(2 * most, "copies");
  const Result<hardware::HugeBuffer> to = hardware::HugeBuffer::Allocate(most, "copies");
  if (!from) return from.error();
  if (!to) return to.error();
  std::memset(from->bytes().data(), 1, from->size_bytes());
  std::memset(to->bytes().data(), 1, to->size_bytes());
  std::vector<Point> copies;
  std::vector<Point> writes;
  for (const int threads : ThreadCounts(pool.size())) {
    for (uint64_t bytes = most; bytes >= most / 512; bytes /= 2) {
      const auto share = bytes / static_cast<uint64_t>(threads) / kPieceBytes * kPieceBytes;
      if (share == 0) continue;  // less than a piece for each of so many threads
      const double moved = double(share) * threads;
      for (const uint64_t piece : {uint64_t{256}, uint64_t{2048}, kPieceBytes, share}) {
        copies.push_back({.features = {double(threads), moved, double(piece)},
                          .ideal_seconds = 2.0 * moved / options.read_bytes_per_second,
                          .run = [&pool, &from, &to, threads, share, piece] {
                            pool.ParallelFor(threads, [&](int64_t thread, int) {
                              std::byte* out = to->bytes().data() + uint64_t(thread) * share;
                              const std::byte* in =
                                  from->bytes().data() + uint64_t(thread) * 2 * share;
                              for (uint64_t at = 0; at + piece <= share; at += piece) {
                                std::memcpy(out + at, in + 2 * at, piece);
                              }
                            });
                          }});
      }
      writes.push_back({.features = {double(threads), moved},
                        .ideal_seconds = moved / options.read_bytes_per_second,
                        .run = [&pool, &to, threads, share] {
                          pool.ParallelFor(threads, [&](int64_t thread, int) {
                            std::memset(to->bytes().data() + uint64_t(thread) * share, 3, share);
                          });
                        }});
    }
  }
  const Status copied = AddModel("memory copy", {"threads", "bytes", "bytes of a piece"},
                                 RunInTurn(copies, options.budget_s), models);
  if (!copied) return copied;
  return AddModel("memory write", {"threads", "bytes"}, RunInTurn(writes, options.budget_s / 2),
                  models);
}

Status MeasureDisk(const MeasureOperatorsOptions& options, OperatorModels& models) {
  const Result<hardware::DiskRequests> found =
      hardware::MeasureDiskRequests(options.disk_directory, options.budget_s);
  if (!found) {
    PrintNote("requests of the disk not measured: {}\n", found.error().message);
    return {};
  }
  std::vector<cost::OperatorSample> samples;
  for (const hardware::DiskPoint& point : found->points) {
    samples.push_back({.features = {double(point.request_bytes), double(point.depth)},
                       .ideal_seconds = double(point.request_bytes) / options.disk_bytes_per_second,
                       .seconds = std::max(point.seconds, 1e-9)});
  }
  return AddModel("disk read", {"bytes of a request", "requests in flight"}, samples, models);
}

Status MeasureSampling(const MeasureOperatorsOptions& options, OperatorModels& models) {
  constexpr int kWords[] = {2048, 8192, 16384, 32000, 50304, 65536, 102400, 151936, 262144};
  std::vector<float> logits(std::end(kWords)[-1]);
  uint32_t state = 1;
  for (float& logit : logits) {
    state = state * 1664525 + 1013904223;
    logit = static_cast<float>(state >> 8) * 1e-6f - 8;  // from -8 to 9
  }
  engine::Sampler greedy({.temperature = 0});
  engine::Sampler drawn({.temperature = 0.7, .top_k = 50, .top_p = 0.95});
  engine::SamplerBuffers buffers;
  for (auto& [name, sampler] :
       {std::pair<const char*, engine::Sampler*>{"sample greedily", &greedy}, {"sample", &drawn}}) {
    std::vector<Point> points;
    for (const int words : kWords) {
      points.push_back({.features = {double(words)},
                        .ideal_seconds = 4.0 * words / options.read_bytes_per_second,
                        .run = [&logits, &buffers, words, sampler = sampler] {
                          sampler->Sample(std::span(logits).first(words), 0, buffers);
                        }});
    }
    const Status added = AddModel(name, {"words"}, RunInTurn(points, options.budget_s / 4), models);
    if (!added) return added;
  }
  return {};
}

}  // namespace

Result<OperatorModels> MeasureOperators(hardware::ThreadPool& pool,
                                        const MeasureOperatorsOptions& options) {
  OperatorModels models;
  if (Status done = MeasureMemory(pool, options, models); !done) return done.error();
  if (Status done = MeasureSampling(options, models); !done) return done.error();
  if (options.disk_directory.empty() || options.disk_bytes_per_second <= 0) return models;
  if (Status done = MeasureDisk(options, models); !done) return done.error();
  return models;
}

Result<OperatorModels> MeasureMessages(comm::Group& group, double budget_s) {
  constexpr int kFewestRounds = 5;
  constexpr size_t kLeast = 64;
  constexpr size_t kMost = size_t{4} << 20;
  const auto num_ranks = static_cast<size_t>(group.size());
  std::vector<std::byte> bytes(kMost);
  std::vector<std::vector<double>> seconds;
  const auto start = Clock::now();
  for (int round = 0; round <= kFewestRounds || round < 100; ++round) {
    // Rank 0's clock decides for all.
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    const bool is_over =
        comm::FromRankZero(group, elapsed.count() > budget_s, "measuring messages");
    if (round > kFewestRounds && is_over) break;
    size_t at = 0;
    for (size_t size = kLeast; size <= kMost; size *= 4, ++at) {
      std::vector<std::span<const std::byte>> send(num_ranks);
      std::vector<std::span<std::byte>> receive(num_ranks);
      if (group.rank() == 0) send[1] = std::span(bytes).first(size);
      if (group.rank() == 1) receive[0] = std::span(bytes).first(size);
      group.Barrier("measuring messages");
      const auto begin = Clock::now();
      const auto exchange = group.StartAllToAll(0, send, receive, "measuring messages");
      while (!exchange->Test()) {
      }
      const double mine = std::chrono::duration<double>(Clock::now() - begin).count();
      // Through is the one that receives it.
      const auto all = group.AllGather(std::as_bytes(std::span(&mine, 1)), "measuring messages");
      double received = 0;
      std::memcpy(&received, all[1].data(), sizeof(received));
      if (seconds.size() <= at) seconds.emplace_back();
      if (round > 0) seconds[at].push_back(received);  // the first one opens connections
    }
  }
  OperatorModels models;
  if (group.rank() != 0) return models;
  for (auto& each : seconds) std::ranges::sort(each);
  const auto median = [&](size_t at) { return seconds[at][seconds[at].size() / 2]; };
  const double rate = static_cast<double>(kMost) / median(seconds.size() - 1);
  std::vector<cost::OperatorSample> samples;
  size_t at = 0;
  for (size_t size = kLeast; size <= kMost; size *= 4, ++at) {
    samples.push_back({.features = {double(size)},
                       .ideal_seconds = double(size) / rate,
                       .seconds = std::max(median(at), 1e-9)});
  }
  const Status added = AddModel("message between two ranks", {"bytes"}, samples, models);
  if (!added) return added.error();
  return models;
}

}  // namespace convene::evaluate
