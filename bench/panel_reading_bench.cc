// How a loop of byte dot products should ask memory for its weights: rows of a tile x streams side
// by side x bytes that a thread takes in a row x width of a load x cache level and distance of a
// software prefetch, each against a plain reading loop in the same round, all in turn.
// panel_reading_bench --help shows the options. It is the kernels' inner loop by itself, without
// what follows the sums: what grouped_gemm_bench --walk says of the kernels, this explains.
// Needs AVX-512 with VNNI.
#include <fmt/format.h>
#include <immintrin.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/median.h"
#include "hardware/huge_buffer.h"
#include "hardware/isa.h"
#include "hardware/measure_memory.h"
#include "hardware/thread_pool.h"
#include "hardware/topology.h"

namespace convene {
namespace {

constexpr int kSteps = 512;  // of 4 columns: a panel of 64 rows and 2,048 columns
constexpr int64_t kStepBytes = 256;
constexpr int64_t kPanelBytes = kSteps * kStepBytes;

enum class Hint { kNone, kT0, kT1, kNta };

template <Hint kHint>
[[gnu::always_inline]] inline void Prefetch(const std::byte* line) {
  if constexpr (kHint == Hint::kT0) asm volatile("prefetcht0 (%0)" : : "r"(line));
  if constexpr (kHint == Hint::kT1) asm volatile("prefetcht1 (%0)" : : "r"(line));
  if constexpr (kHint == Hint::kNta) asm volatile("prefetchnta (%0)" : : "r"(line));
}

template <bool kHalfLines>
[[gnu::always_inline, gnu::target("avx512f,avx512bw,avx512vnni")]] inline __m512i LoadLine(
    const std::byte* from) {
  if constexpr (!kHalfLines) return _mm512_loadu_si512(from);
  __m512i line;
  asm("vmovdqu64 %1, %t0\n\tvinserti64x4 $1, %2, %g0, %g0"
      : "=&v"(line)
      : "m"(*reinterpret_cast<const __m256i*>(from)),
        "m"(*reinterpret_cast<const __m256i*>(from + 32)));
  return line;
}

// By value: with a reference g++ 12 keeps all sums in memory.
[[gnu::always_inline, gnu::target("avx512f,avx512bw,avx512vnni")]] inline __m512i Dot(
    __m512i sum, __m512i weights, __m512i activations) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(activations));
  return sum;
}

// A panel of each stream, `stream_bytes` apart, times kRows rows. Returns something of the sums.
template <int kStreams, int kRows, Hint kHint, bool kHalfLines>
[[gnu::noinline, gnu::target("avx512f,avx512bw,avx512vnni")]] int32_t Multiply(
    const std::byte* panels, int64_t stream_bytes, int64_t ahead_bytes, const int32_t* rows) {
  __m512i sums[kRows][kStreams][4];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int stream = 0; stream < kStreams; ++stream) {
#pragma GCC unroll 8
      for (int i = 0; i < 4; ++i) sums[row][stream][i] = _mm512_setzero_si512();
    }
  }
  for (int step = 0; step < kSteps; ++step) {
    __m512i activations[kRows];
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      activations[row] = _mm512_set1_epi32(rows[row * kSteps + step]);
    }
#pragma GCC unroll 8
    for (int stream = 0; stream < kStreams; ++stream) {
      const std::byte* at = panels + stream * stream_bytes + step * kStepBytes;
#pragma GCC unroll 8
      for (int i = 0; i < 4; ++i) {
        Prefetch<kHint>(at + ahead_bytes + i * 64);
        const __m512i weights = LoadLine<kHalfLines>(at + i * 64);
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
          sums[row][stream][i] = Dot(sums[row][stream][i], weights, activations[row]);
        }
      }
    }
  }
  __m512i total = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int stream = 0; stream < kStreams; ++stream) {
#pragma GCC unroll 8
      for (int i = 0; i < 4; ++i) total = _mm512_add_epi32(total, sums[row][stream][i]);
    }
  }
  return _mm512_reduce_add_epi32(total);
}

template <typename T>
T OrExit(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "panel_reading_bench: {}\n", result.error().message);
  std::exit(1);
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Bench {
 public:
  Bench(int rows, int rounds)
      : rounds_(rounds),
        pool_(OrExit(hardware::CpusForRank(OrExit(hardware::ReadTopology()), {}, std::nullopt))),
        memory_(OrExit(hardware::HugeBuffer::Allocate(kMemoryBytes + kPanelBytes, "the weights"))),
        activations_(8 * kSteps, 1) {
    std::memset(memory_.data(), 0x3c, memory_.size_bytes());
    if (rows == 1) AddAll<1>();
    if (rows == 2) AddAll<2>();
    if (rows == 4) AddAll<4>();
    if (rows == 6) AddAll<6>();
  }

  void Run() {
    std::vector<double> read;
    for (int round = 0; round < rounds_; ++round) {
      for (Tried& one : tried_) {
        const auto reading = [&] {
          return hardware::MeasureReadBandwidth(pool_, memory_.bytes().first(kMemoryBytes), 0.02)
              .median;
        };
        const double before = reading();
        const double start = Seconds();
        one.pass();
        const double rate = static_cast<double>(kMemoryBytes) / (Seconds() - start);
        read.push_back((before + reading()) / 2);
        one.of_read.push_back(rate / read.back());
      }
    }
    const auto [slowest, fastest] = std::minmax_element(read.begin(), read.end());
    fmt::print("{} threads, read at {:.1f} GB/s ({:.1f} to {:.1f})\n", pool_.size(),
               Median(read) / 1e9, *slowest / 1e9, *fastest / 1e9);
    fmt::print("{:>5} {:>8} {:>8} {:>6} {:>5} {:>8} {:>8}\n", "rows", "streams", "run KiB", "lines",
               "hint", "ahead B", "of read");
    for (const Tried& one : tried_) {
      fmt::print("{} {:>7.1f}%\n", one.name, 100 * Median(one.of_read));
    }
  }

 private:
  static constexpr size_t kMemoryBytes = size_t{384} << 20;
  static constexpr int64_t kKib = 1024;

  struct Tried {
    std::string name;
    std::function<void()> pass;
    std::vector<double> of_read = {};
  };

  template <int kStreams, int kRows, Hint kHint, bool kHalfLines>
  void Add(int64_t run_bytes, int64_t ahead_bytes) {
    constexpr const char* kHints[] = {"-", "t0", "t1", "nta"};
    tried_.push_back(
        {fmt::format("{:>5} {:>8} {:>8} {:>6} {:>5} {:>8}", kRows, kStreams, run_bytes / kKib,
                     kHalfLines ? "half" : "whole", kHints[static_cast<int>(kHint)], ahead_bytes),
         [this, run_bytes, ahead_bytes] {
           pool_.ParallelFor(static_cast<int64_t>(kMemoryBytes) / run_bytes, [&](int64_t run, int) {
             const std::byte* begin = memory_.data() + run * run_bytes;
             const int64_t stream_bytes = run_bytes / kStreams;
             for (int64_t at = 0; at < stream_bytes; at += kPanelBytes) {
               sink_ = Multiply<kStreams, kRows, kHint, kHalfLines>(
                   begin + at, stream_bytes, ahead_bytes, activations_.data());
             }
           });
         }});
  }

  template <int kRows>
  void AddAll() {
    for (const int64_t run_bytes : {128 * kKib, 512 * kKib, 1024 * kKib, 4096 * kKib}) {
      Add<1, kRows, Hint::kNone, false>(run_bytes, 0);
      Add<1, kRows, Hint::kNone, true>(run_bytes, 0);
    }
    if constexpr (kRows <= 2) {  // more sums than registers otherwise
      for (const int64_t run_bytes : {1024 * kKib, 4096 * kKib}) {
        Add<2, kRows, Hint::kNone, false>(run_bytes, 0);
        Add<2, kRows, Hint::kNone, true>(run_bytes, 0);
      }
    }
    for (const int64_t ahead_bytes : {512, 1024, 2048, 8192}) {
      Add<1, kRows, Hint::kT1, true>(1024 * kKib, ahead_bytes);
      Add<1, kRows, Hint::kT1, false>(128 * kKib, ahead_bytes);
      Add<1, kRows, Hint::kT0, true>(1024 * kKib, ahead_bytes);
      Add<1, kRows, Hint::kNta, true>(1024 * kKib, ahead_bytes);
    }
  }

  const int rounds_;
  hardware::ThreadPool pool_;
  hardware::HugeBuffer memory_;
  std::vector<int32_t> activations_;
  std::vector<Tried> tried_;
  volatile int32_t sink_ = 0;
};

}  // namespace
}  // namespace convene

int main(int argc, char** argv) {
  int rows = 1;
  int rounds = 7;
  CLI::App app("Ways of reading weights beside byte dot products, against a reading loop");
  app.add_option("--rows", rows)->check(CLI::IsMember({1, 2, 4, 6}))->capture_default_str();
  app.add_option("--repeat", rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (!convene::hardware::ChooseIsa("avx512_vnni", convene::hardware::IsaCandidates())) {
    fmt::print(stderr, "panel_reading_bench: this CPU has no AVX-512 with VNNI\n");
    return 1;
  }
  convene::Bench(rows, rounds).Run();
  return 0;
}
