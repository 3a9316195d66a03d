// What the groups of ranks cost: time and rate of an exchange over its size, rates of the wire
// formats, and what overlapping an exchange with computing on the same core gains at different
// periods of the poll. Started by mpirun, or alone for --threads and the wire formats.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "base/median.h"
#include "bench/results_file.h"
#include "comm/agree.h"
#include "comm/connect.h"
#include "comm/threads/thread_group.h"
#include "comm/wire_format.h"

namespace convene::comm {
namespace {

using nlohmann::json;

struct Options {
  int threads = 0;
  std::vector<size_t> sizes = {1, 4096, 65536, 1 << 20, 8 << 20};
  bool overlap = false;
  size_t overlap_bytes = 1 << 20;
  std::vector<int> periods_us = {50, 100, 300, 1000, 3000};
  double compute_share = 2;  // computing alone takes this times the exchange alone
  int repeats = 7;
  bool wire = false;
  std::string json_path;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The same amount of bytes from everybody to everybody else.
class EvenExchange {
 public:
  EvenExchange(Group& group, size_t bytes)
      : group_(group),
        out_(bytes, std::byte{1}),
        in_(group.size(), std::vector<std::byte>(bytes)),
        send_(group.size(), out_),
        receive_(in_.begin(), in_.end()) {
    send_[group.rank()] = {};
    receive_[group.rank()] = {};
  }

  std::unique_ptr<Exchange> Start() {
    return group_.StartAllToAll(0, send_, receive_, "an exchange of the benchmark");
  }

 private:
  Group& group_;
  std::vector<std::byte> out_;
  std::vector<std::vector<std::byte>> in_;
  std::vector<std::span<const std::byte>> send_;
  std::vector<std::span<std::byte>> receive_;
};

// Seconds of `work` on the slowest rank: all begin together.
template <typename Work>
double Timed(Group& group, Work work) {
  group.Barrier("the start of a measurement");
  const double start = Seconds();
  work();
  const double own = Seconds() - start;
  double slowest = 0;
  for (const auto& bytes : group.AllGather(std::as_bytes(std::span(&own, 1)), "times")) {
    double theirs;
    std::memcpy(&theirs, bytes.data(), sizeof(theirs));
    slowest = std::max(slowest, theirs);
  }
  return slowest;
}

json MeasureExchanges(Group& group, const Options& options) {
  json points = json::array();
  if (group.rank() == 0)
    fmt::print("{:>10}  {:>12}  {:>14}\n", "bytes/peer", "microseconds", "MB/s sent/rank");
  for (const size_t bytes : options.sizes) {
    EvenExchange exchange(group, bytes);
    const int rounds = bytes < 100'000 ? 50 : 4;
    std::vector<double> times;
    for (int repeat = 0; repeat < options.repeats; ++repeat)
      times.push_back(Timed(group,
                            [&] {
                              for (int i = 0; i < rounds; ++i) group.Wait(*exchange.Start());
                            }) /
                      rounds);
    const double time = Median(times);
    const double rate = static_cast<double>(bytes) * (group.size() - 1) / time / 1e6;
    if (group.rank() == 0) fmt::print("{:>10}  {:>12.1f}  {:>14.1f}\n", bytes, time * 1e6, rate);
    points.push_back({{"bytes", bytes}, {"seconds", time}, {"mb_per_s", rate}});
  }
  return points;
}

// Multiply-adds over a matrix in the second-level cache.
class Computing {
 public:
  // Rounds that take about `seconds` on a core of their own.
  static int64_t RoundsFor(double seconds) {
    Computing work;
    work.Run(2000);
    double best = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const double start = Seconds();
      work.Run(2000);
      best = std::min(best, Seconds() - start);
    }
    return static_cast<int64_t>(seconds / best * 2000);
  }

  [[gnu::noinline]] void Run(int64_t rounds) {
    for (int64_t round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < values_.size(); ++i) values_[i] = values_[i] * 0.999f + 0.001f;
      asm volatile("" : : "r"(values_.data()) : "memory");  // else compilers exchange the loops
    }
  }

 private:
  std::vector<float> values_ = std::vector<float>(1 << 16, 1.0f);
};

json MeasureOverlap(Group& group, const Options& options) {
  EvenExchange exchange(group, options.overlap_bytes);
  std::vector<double> exchange_times;
  for (int repeat = 0; repeat < 5; ++repeat)
    exchange_times.push_back(Timed(group, [&] { group.Wait(*exchange.Start()); }));
  const double exchange_time = Median(exchange_times);

  int64_t rounds = Computing::RoundsFor(options.compute_share * exchange_time);
  std::vector<std::byte> bytes(sizeof(rounds));
  std::memcpy(bytes.data(), &rounds, sizeof(rounds));
  group.Broadcast(0, &bytes, "how much to compute");
  std::memcpy(&rounds, bytes.data(), sizeof(rounds));

  Computing computing;
  std::vector<double> alone, apart;
  std::vector<std::vector<double>> together(options.periods_us.size());
  for (int repeat = 0; repeat < options.repeats; ++repeat) {  // interleaved
    alone.push_back(Timed(group, [&] { computing.Run(rounds); }));
    apart.push_back(Timed(group, [&] {
      computing.Run(rounds);
      group.Wait(*exchange.Start());
    }));
    for (size_t i = 0; i < together.size(); ++i)
      together[i].push_back(Timed(group, [&] {
        std::atomic<bool> is_waiting = false;
        std::jthread lane([&] {
          const auto under_way = exchange.Start();
          // Long while computing shares the core, as short as Wait's when nothing else is left.
          while (!is_waiting && !under_way->Test())
            std::this_thread::sleep_for(std::chrono::microseconds(options.periods_us[i]));
          group.Wait(*under_way);
        });
        computing.Run(rounds);
        is_waiting = true;
      }));
  }

  const double compute_time = Median(alone), apart_time = Median(apart);
  json result = {{"bytes_per_peer", options.overlap_bytes},
                 {"exchange_seconds", exchange_time},
                 {"compute_seconds", compute_time},
                 {"apart_seconds", apart_time},
                 {"periods", json::array()}};
  if (group.rank() == 0)
    fmt::print(
        "exchange {:.1f} ms, computing {:.1f} ms, one after the other {:.1f} ms (no gain is above "
        "{:.2f}x)\n{:>9}  {:>8}  {:>6}\n",
        exchange_time * 1e3, compute_time * 1e3, apart_time * 1e3,
        apart_time / std::max(compute_time, exchange_time), "period/us", "together", "gain");
  for (size_t i = 0; i < together.size(); ++i) {
    const double time = Median(together[i]);
    if (group.rank() == 0)
      fmt::print("{:>9}  {:>5.1f} ms  {:>5.2f}x\n", options.periods_us[i], time * 1e3,
                 apart_time / time);
    result["periods"].push_back(
        {{"period_us", options.periods_us[i]}, {"seconds", time}, {"gain", apart_time / time}});
  }
  return result;
}

json MeasureWire(const Options& options) {
  json points = json::array();
  fmt::print("{:>6}  {:>5}  {:>16}  {:>16}\n", "format", "cols", "encode GB/s", "decode GB/s");
  for (const size_t cols : {2048, 8192}) {
    const size_t num_rows = (size_t{1} << 18) / cols;  // 1 MiB of floats: the second-level cache
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> rows(num_rows * cols);
    for (float& value : rows) value = normal(random);
    for (const WireFormat format : {WireFormat::kF32, WireFormat::kBf16, WireFormat::kE4m3}) {
      const size_t row_bytes = RowBytes(format, cols);
      std::vector<std::byte> wire(num_rows * row_bytes);
      const auto rate = [&](auto convert) {
        std::vector<double> times;
        for (int repeat = 0; repeat < options.repeats * 10; ++repeat) {
          const double start = Seconds();
          for (size_t row = 0; row < num_rows; ++row)
            convert(std::span(rows).subspan(row * cols, cols), wire.data() + row * row_bytes);
          times.push_back(Seconds() - start);
        }
        return static_cast<double>(rows.size() * 4) / Median(times) / 1e9;
      };
      const double encode = rate([&](std::span<float> row, std::byte* out) {
        EncodeRow(format, std::span<const float>(row), out);
      });
      const double decode =
          rate([&](std::span<float> row, const std::byte* in) { DecodeRow(format, in, row); });
      fmt::print("{:>6}  {:>5}  {:>16.1f}  {:>16.1f}\n", Name(format), cols, encode, decode);
      points.push_back({{"format", std::string(Name(format))},
                        {"cols", cols},
                        {"encode_gb_per_s", encode},
                        {"decode_gb_per_s", decode}});
    }
  }
  return points;
}

// Collective.
Status MeasureGroup(Group& group, const Options& options) {
  const Status opened = AgreeOnSuccess(
      group, group.rank() == 0 ? bench::CheckResultsFile(options.json_path) : Status());
  if (!opened) return opened;
  json results = {{"ranks", group.size()}};
  if (options.overlap) {
    results["overlap"] = MeasureOverlap(group, options);
  } else {
    results["exchanges"] = MeasureExchanges(group, options);
  }
  if (group.rank() == 0 && options.wire) results["wire"] = MeasureWire(options);
  return AgreeOnSuccess(
      group, group.rank() == 0 ? bench::WriteResultsFile(options.json_path, results.dump(2) + '\n')
                               : Status());
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Exchanges between ranks: mpirun -n 2 comm_bench");
  app.add_option("--threads", options.threads, "ranks as threads of one process, so many");
  app.add_option("--sizes", options.sizes, "bytes to each peer")->delimiter(',');
  app.add_flag("--overlap", options.overlap, "exchange beside computing on the same core");
  app.add_option("--overlap-bytes", options.overlap_bytes, "to each peer");
  app.add_option("--periods", options.periods_us, "of the poll, microseconds")->delimiter(',');
  app.add_option("--compute-share", options.compute_share, "computing / exchange, both alone");
  app.add_option("--repeats", options.repeats, "medians of so many");
  app.add_flag("--wire", options.wire, "the wire formats' rates, too");
  app.add_option("--json", options.json_path, "writes the figures to this file");
  CLI11_PARSE(app, argc, argv);

  Status measured;
  if (options.threads > 0) {
    RunOnThreads(options.threads, [&](Group& group) {
      const Status all = MeasureGroup(group, options);
      if (group.rank() == 0) measured = all;
    });
  } else {
    Result<std::unique_ptr<Group>> group = Connect();
    measured = group ? MeasureGroup(**group, options) : Status(group.error());
  }
  if (!measured) fmt::print(stderr, "comm_bench: {}\n", measured.error().message);
  return measured ? 0 : 1;
}

}  // namespace
}  // namespace convene::comm

int main(int argc, char** argv) { return convene::comm::Main(argc, argv); }
