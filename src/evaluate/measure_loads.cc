#include "evaluate/measure_loads.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/median.h"
#include "comm/agree.h"
#include "kernels/dequantize.h"
#include "weights/expert_backup.h"
#include "weights/expert_parts.h"

namespace convene::evaluate {
namespace {

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

}  // namespace

Result<cost::LoadRates> MeasureLoads(comm::Group& group, const weights::WeightFormats& formats,
                                     memory::Ledger& ledger) {
  constexpr model::ActivationSpec kGated;
  constexpr int kColumnsEach = weights::ExpertBackup::kMostColumns;
  FfnWeights target = weights::FfnOf(formats, kGated, kHidden, kColumns);
  FfnWeights piece = weights::FfnOf(formats, kGated, kHidden, kColumnsEach);
  FfnWeights rounded = weights::FfnOf(
      {.matrices = kernels::WeightFormat::kInt4, .group = weights::ExpertBackup::kGroup}, kGated,
      kHidden, kColumnsEach);
  const uint64_t bytes = SizeBytes(target) + SizeBytes(piece) + kPieces * SizeBytes(rounded);
  const Result<memory::Reservation> memory = ledger.Allocate(memory::Use::kStaging, bytes);
  const Status mine = memory ? Status() : Status(memory.error());
  if (const Status all = comm::AgreeOnSuccess(group, mine); !all) return all.error();
  // Of no value in particular, but none that is slow to compute with.
  std::memset(memory->data(), 1, bytes);
  std::byte* at = memory->data();
  at += PlaceFfnAt(at, &target);
  at += PlaceFfnAt(at, &piece);
  const auto take = [&](int i) {
    TakePiece({.expert = 0, .slice = {i * kColumnsEach, kColumnsEach}}, piece, i * kColumnsEach,
              /*gated=*/true, target, 0);
  };
  const auto dequantize = [&](int i) {
    FfnWeights from = rounded;
    PlaceFfnAt(at + static_cast<uint64_t>(i) * SizeBytes(rounded), &from);
    kernels::DequantizeInt4(from.up, piece.up, Writable(piece.up));
    kernels::DequantizeInt4(from.down, piece.down, Writable(piece.down));
  };
  const double copying = SecondsOf(group, take);
  const double making = SecondsOf(group, dequantize);
  const double weights = 3.0 * kHidden * kColumns;
  return cost::LoadRates{
      .copied_bytes_per_second = static_cast<double>(SizeBytes(target)) / copying,
      .weights_per_second = weights / making};
}

}  // namespace convene::evaluate
