#include "evaluate/measure_loads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/median.h"
#include "base/start_thread.h"
#include "comm/agree.h"
#include "hardware/affinity.h"
#include "kernels/pack.h"
#include "weights/backup_matrix.h"
#include "weights/expert_backup.h"
#include "weights/expert_parts.h"

namespace convene::evaluate {
namespace {

using kernels::PackedMatrix;
using weights::BackupFfn;
using weights::FfnWeights;

constexpr int kHidden = 1024;
constexpr int kPasses = 5;
// More than caches hold, so that pieces come from memory as in a model.
constexpr int kColumns = 4 * weights::ExpertBackup::kMostColumns;
constexpr int kPieces = kColumns / weights::ExpertBackup::kMostColumns;

template <typename F>
double SecondsOf(comm::Group& group, F&& run) {
  std::vector<double> seconds;
  for (int pass = 0; pass < kPasses; ++pass) {
    group.Barrier("loads");
    const auto start = std::chrono::steady_clock::now();
    for (int piece = 0; piece < kPieces; ++piece) run(piece);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    seconds.push_back(std::max(elapsed.count(), 1e-9));
  }
  return Median(seconds);
}

// A lane's thread loads pieces until the one that computes has gone round often enough.
struct Beside {
  double seconds = 0;
  int computations = 0;
  int pieces = 0;
};

constexpr double kSecondsBeside = 0.1;

template <typename F>
Result<Beside> RunBeside(comm::Group& group, const ComputationBeside& computation, F&& run) {
  std::atomic<bool> is_over = false;
  std::atomic<int> pieces = 0;
  group.Barrier("loads beside computation");
  const auto start = std::chrono::steady_clock::now();
  Result<std::jthread> thread = StartThread("the thread of loads that are measured", [&] {
    // Where the lane's thread of a run is. Elsewhere it loads, too.
    static_cast<void>(hardware::SetAffinity(computation.cpus));
    while (!is_over) run(pieces++ % kPieces);
  });
  if (!thread) return thread.error();
  Beside beside;
  while (beside.seconds < kSecondsBeside) {
    computation.run();
    ++beside.computations;
    beside.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  beside.pieces = pieces;
  is_over = true;
  return beside;
}

// Core-seconds that a second of loading alone takes of computation, which is measured alone and
// with loads beside it in turn, since the machine's speed wanders. 1 where there is no thread.
template <typename F>
double CoreSecondsBeside(comm::Group& group, const ComputationBeside& computation, F&& run) {
  constexpr int kRounds = 3;
  constexpr double kMost = 10;  // of a machine that had other work to do
  std::vector<double> found;
  for (int round = 0; round < kRounds; ++round) {
    const double alone = SecondsOf(group, run) / kPieces;
    group.Barrier("computation beside loads");
    const auto start = std::chrono::steady_clock::now();
    computation.run();
    const std::chrono::duration<double> computing = std::chrono::steady_clock::now() - start;
    const Result<Beside> beside = RunBeside(group, computation, run);
    const Status mine = beside ? Status() : Status(beside.error());
    if (!comm::AgreeOnSuccess(group, mine)) return 1;
    const double lost = beside->seconds - beside->computations * computing.count();
    found.push_back(computation.num_threads * lost / (std::max(1, beside->pieces) * alone));
  }
  return std::clamp(Median(found), 0.0, kMost);
}

// Normal weights, so that a piece has as many outliers as trained ones have.
void FillNormal(const PackedMatrix& matrix, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(static_cast<size_t>(kernels::kLanes) * matrix.cols);
  const kernels::StoredMatrix stored{.data = reinterpret_cast<const std::byte*>(values.data()),
                                     .row_stride = matrix.cols,
                                     .rows = kernels::kLanes,
                                     .cols = matrix.cols};
  kernels::RowSource rows[kernels::kLanes] = {};
  for (int i = 0; i < kernels::kLanes; ++i) rows[i] = {&stored, i};
  for (int group = 0; group < matrix.rows / kernels::kLanes; ++group) {
    for (float& value : values) value = normal(random);
    CHECK(kernels::PackGroup(rows, matrix, group, Writable(matrix)), "normal weights are finite");
  }
}

}  // namespace

Result<cost::LoadRates> MeasureLoads(comm::Group& group, const weights::WeightFormats& formats,
                                     memory::Ledger& ledger, const ComputationBeside& computation) {
  constexpr model::ActivationSpec kGated;
  constexpr int kColumnsEach = weights::ExpertBackup::kMostColumns;
  FfnWeights target = weights::FfnOf(formats, kGated, kHidden, kColumns);
  FfnWeights piece = weights::FfnOf(formats, kGated, kHidden, kColumnsEach);
  BackupFfn rounded = weights::BackupFfnOf(kGated, kHidden, kColumnsEach);
  const uint64_t rounded_bytes = SizeBytes(rounded);
  const uint64_t bytes = SizeBytes(target) + SizeBytes(piece) + kPieces * rounded_bytes;
  const Result<memory::Reservation> memory = ledger.Allocate(memory::Use::kStaging, bytes);
  const Status mine = memory ? Status() : Status(memory.error());
  if (const Status all = comm::AgreeOnSuccess(group, mine); !all) return all.error();
  std::byte* at = memory->data();
  at += PlaceFfnAt(at, &target);
  at += PlaceFfnAt(at, &piece);
  std::mt19937 random(1);
  FillNormal(piece.up, random);
  FillNormal(piece.down, random);
  PlaceAt(at, &rounded);
  RoundFfn(piece, rounded);
  for (int i = 1; i < kPieces; ++i) std::memcpy(at + i * rounded_bytes, at, rounded_bytes);
  const auto take = [&](int i) {
    TakePiece({.expert = 0, .slice = {i * kColumnsEach, kColumnsEach}}, piece, i * kColumnsEach,
              /*gated=*/true, target, 0);
  };
  const auto dequantize = [&](int i) {
    BackupFfn from = rounded;
    PlaceAt(at + static_cast<uint64_t>(i) * rounded_bytes, &from);
    DequantizeFfn(from, piece);
  };
  const double copying = SecondsOf(group, take);
  const double making = SecondsOf(group, dequantize);
  const double weights = 3.0 * kHidden * kColumns;
  cost::LoadRates rates{.copied_bytes_per_second = static_cast<double>(SizeBytes(target)) / copying,
                        .weights_per_second = weights / making};
  if (!computation.run) return rates;
  rates.copying_beside = CoreSecondsBeside(group, computation, take);
  rates.making_beside = CoreSecondsBeside(group, computation, dequantize);
  return rates;
}

}  // namespace convene::evaluate
