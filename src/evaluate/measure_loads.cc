#include "evaluate/measure_loads.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/median.h"
#include "comm/agree.h"
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
                                     memory::Ledger& ledger) {
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
  return cost::LoadRates{
      .copied_bytes_per_second = static_cast<double>(SizeBytes(target)) / copying,
      .weights_per_second = weights / making};
}

}  // namespace convene::evaluate
