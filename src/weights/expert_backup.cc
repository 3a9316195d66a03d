#include "weights/expert_backup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/check.h"
#include "kernels/dequantize.h"
#include "kernels/pack.h"

namespace convene::weights {
namespace {

using kernels::PackedMatrix;
using strategy::Phase;

constexpr WeightFormats kBackup = {.matrices = kernels::WeightFormat::kInt4,
                                   .group = ExpertBackup::kGroup};

// What a rank has in a phase, whose pieces are another phase's as well or not.
struct Parts {
  ExpertPart prefill;
  ExpertPart decode;
};

std::vector<ExpertPiece> OriginalsOf(const Parts& parts) {
  return PiecesBeside(parts.decode, parts.prefill, ExpertBackup::kMostColumns);
}
std::vector<ExpertPiece> RoundedOf(const Parts& parts) {
  return PiecesBeside(parts.prefill, parts.decode, ExpertBackup::kMostColumns);
}

void ForEach(hardware::ThreadPool* pool, int64_t count, const std::function<void(int64_t)>& run) {
  if (pool != nullptr) return pool->ParallelFor(count, [&](int64_t i, int) { run(i); });
  for (int64_t i = 0; i < count; ++i) run(i);
}

// Of one matrix that was rounded, by the groups that have a scale in common.
BackupQuality QualityOf(const PackedMatrix& rounded, std::span<const float> stored) {
  BackupQuality quality;
  const auto cols = static_cast<size_t>(rounded.cols);
  std::vector<float> row(cols);
  for (int i = 0; i < rounded.rows; ++i) {
    kernels::UnpackRow(rounded, i, row.data());
    const float* before = stored.data() + static_cast<size_t>(i) * cols;
    for (size_t first = 0; first < cols; first += ExpertBackup::kGroup) {
      const size_t end = std::min(cols, first + ExpertBackup::kGroup);
      BackupQuality group;
      for (size_t col = first; col < end; ++col) {
        group.dot += double{before[col]} * row[col];
        group.squares += double{before[col]} * before[col];
        group.rounded_squares += double{row[col]} * row[col];
      }
      if (!(group.squares > 0)) continue;
      const double cosine = group.cosine();
      group.num_groups = 1;
      group.num_good = cosine >= BackupQuality::kGoodCosine ? 1 : 0;
      group.least_cosine = group.sum_of_cosines = cosine;
      quality.Add(group);
    }
  }
  return quality;
}

// Rounds `from` into `target`, row by row.
BackupQuality RoundMatrix(const PackedMatrix& from, const PackedMatrix& target) {
  std::vector<float> values(static_cast<size_t>(from.rows) * static_cast<size_t>(from.cols));
  for (int row = 0; row < from.rows; ++row) {
    kernels::UnpackRow(from, row, values.data() + static_cast<size_t>(row) * from.cols);
  }
  const kernels::StoredMatrix stored{.data = reinterpret_cast<const std::byte*>(values.data()),
                                     .row_stride = from.cols,
                                     .rows = from.rows,
                                     .cols = from.cols};
  for (int first = 0; first < target.rows; first += kernels::kLanes) {
    kernels::RowSource rows[kernels::kLanes] = {};
    for (int i = 0; i < kernels::kLanes && first + i < from.rows; ++i) {
      rows[i] = {&stored, first + i};
    }
    const bool is_finite =
        kernels::PackGroup(rows, target, first / kernels::kLanes, Writable(target));
    CHECK(is_finite, "weights that were packed are finite");
  }
  return QualityOf(target, values);
}

}  // namespace

void BackupQuality::Add(const BackupQuality& other) {
  num_groups += other.num_groups;
  num_good += other.num_good;
  least_cosine = std::min(least_cosine, other.least_cosine);
  sum_of_cosines += other.sum_of_cosines;
  dot += other.dot;
  squares += other.squares;
  rounded_squares += other.rounded_squares;
}

double BackupQuality::cosine() const {
  if (!(squares > 0)) return 1;
  return rounded_squares > 0 ? dot / std::sqrt(squares * rounded_squares) : 0;
}

Status ExpertBackup::CheckFormats(const WeightFormats& formats) {
  if (!kernels::IsInteger(formats.matrices)) return {};
  return Error{fmt::format(
      "experts that come to decode's division from an int4 backup need weights in bf16 or f32, and "
      "these are in {}: use --weights bf16, or let them move between ranks (--transition reshard, "
      "or \"transition\": \"reshard\" in the plan)",
      kernels::Name(formats.matrices))};
}

ExpertBackup::Bytes ExpertBackup::BytesOf(const model::ModelSpec& whole,
                                          const WeightFormats& formats, const Share& share) {
  Bytes bytes;
  for (const model::LayerSpec& layer : whole.layers) {
    if (!layer.moe) continue;
    const Parts parts = {ExpertPartOf(*layer.moe, share, formats),
                         ExpertPartOf(*layer.moe, InDecode(share), formats)};
    const auto size = [&](const ExpertPiece& piece, const WeightFormats& in) {
      return SizeBytes(FfnOf(in, layer.moe->activation, whole.hidden_size, piece.slice.size));
    };
    for (const ExpertPiece& piece : OriginalsOf(parts)) bytes.originals += size(piece, formats);
    for (const ExpertPiece& piece : RoundedOf(parts)) {
      bytes.backup += size(piece, kBackup);
      bytes.working = std::max(bytes.working, size(piece, formats));
    }
  }
  return bytes;
}

Result<std::unique_ptr<ExpertBackup>> ExpertBackup::Create(PhasedWeights& weights,
                                                           memory::Ledger& ledger) {
  if (Status fits = CheckFormats(weights.formats()); !fits) return fits.error();
  const Bytes bytes = BytesOf(weights.whole(), weights.formats(), weights.share());
  std::unique_ptr<ExpertBackup> backup(new ExpertBackup(weights));
  auto storage = ledger.Allocate(memory::Use::kWeights, bytes.originals + bytes.backup);
  if (!storage) return storage.error();
  backup->storage_ = *std::move(storage);
  auto working = ledger.Allocate(memory::Use::kWorking, bytes.working);
  if (!working) return working.error();
  backup->working_ = *std::move(working);
  backup->Place(backup->storage_.data());
  return backup;
}

void ExpertBackup::Place(std::byte* data) {
  const model::ModelSpec& whole = weights_.whole();
  for (int layer = 0; layer < whole.num_layers(); ++layer) {
    Layer& kept = layers_.emplace_back();
    if (!whole.layers[layer].moe) continue;
    const Parts parts = {weights_.PartOf(layer, Phase::kPrefill),
                         weights_.PartOf(layer, Phase::kDecode)};
    const auto place = [&](const std::vector<ExpertPiece>& pieces, const WeightFormats& formats,
                           std::vector<Kept>& to) {
      for (const ExpertPiece& piece : pieces) {
        Kept& one = to.emplace_back(piece, PieceOf(layer, piece, formats));
        data += PlaceFfnAt(data, &one.packed);
      }
    };
    place(OriginalsOf(parts), weights_.formats(), kept.originals);
    place(RoundedOf(parts), kBackup, kept.rounded);
  }
}

FfnWeights ExpertBackup::PieceOf(int layer, const ExpertPiece& piece,
                                 const WeightFormats& formats) const {
  const model::ModelSpec& whole = weights_.whole();
  return FfnOf(formats, whole.layers[layer].moe->activation, whole.hidden_size, piece.slice.size);
}

bool ExpertBackup::IsGated(int layer) const {
  return weights_.whole().layers[layer].moe->activation.gated();
}

void ExpertBackup::KeepOriginals(hardware::ThreadPool* pool) {
  for (int layer = 0; layer < std::ssize(layers_); ++layer) {
    const std::vector<Kept>& originals = layers_[layer].originals;
    if (originals.empty()) continue;
    const ExpertPart part = weights_.PartOf(layer, Phase::kPrefill);
    const std::vector<FfnWeights>& experts = weights_.ExpertsIn(layer, Phase::kPrefill);
    ForEach(pool, std::ssize(originals), [&](int64_t i) {
      const Kept& kept = originals[static_cast<size_t>(i)];
      FillPadding(kept.packed, IsGated(layer), kept.piece.slice.size);
      TakePiece(kept.piece, experts[static_cast<size_t>(kept.piece.expert - part.experts.first)],
                part.slice.first, IsGated(layer), kept.packed, kept.piece.slice.first);
    });
  }
}

BackupQuality ExpertBackup::RoundPiece(int layer, const Kept& kept) const {
  const ExpertPart part = weights_.PartOf(layer, Phase::kDecode);
  const FfnWeights& expert = weights_.ExpertsIn(
      layer, Phase::kDecode)[static_cast<size_t>(kept.piece.expert - part.experts.first)];
  // Memory of its own, since threads round several at a time, while the model is loaded.
  FfnWeights piece = PieceOf(layer, kept.piece, weights_.formats());
  std::vector<std::byte> bytes(SizeBytes(piece) + 64);
  auto* const aligned = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
  PlaceFfnAt(aligned, &piece);
  FillPadding(piece, IsGated(layer), kept.piece.slice.size);
  TakePiece(kept.piece, expert, part.slice.first, IsGated(layer), piece, kept.piece.slice.first);
  BackupQuality quality = RoundMatrix(piece.up, kept.packed.up);
  quality.Add(RoundMatrix(piece.down, kept.packed.down));
  return quality;
}

void ExpertBackup::Round(hardware::ThreadPool* pool) {
  for (int layer = 0; layer < std::ssize(layers_); ++layer) {
    const std::vector<Kept>& rounded = layers_[layer].rounded;
    std::vector<BackupQuality> qualities(rounded.size());
    ForEach(pool, std::ssize(rounded), [&](int64_t i) {
      qualities[static_cast<size_t>(i)] = RoundPiece(layer, rounded[static_cast<size_t>(i)]);
    });
    for (const BackupQuality& each : qualities) quality_.Add(each);
  }
}

void ExpertBackup::Load(int layer, Phase phase) {
  const PhasedWeights::Change change = weights_.Begin(layer, phase);
  const bool gated = IsGated(layer);
  const auto old_expert = [&](int expert) -> const FfnWeights& {
    return (*change.from)[static_cast<size_t>(expert - change.from_part.experts.first)];
  };
  const auto new_expert = [&](int expert) -> const FfnWeights& {
    return (*change.to)[static_cast<size_t>(expert - change.to_part.experts.first)];
  };
  if (change.from_part != change.to_part) {
    for (const ExpertPiece& piece : PiecesOf(change.from_part, change.to_part, kMostColumns)) {
      TakePiece(piece, old_expert(piece.expert), change.from_part.slice.first, gated,
                new_expert(piece.expert), change.to_part.slice.first);
    }
  }
  const bool from_backup = phase == Phase::kDecode;
  const Layer& kept = layers_[static_cast<size_t>(layer)];
  for (const Kept& one : from_backup ? kept.rounded : kept.originals) {
    FfnWeights source = one.packed;
    if (from_backup) {
      source = PieceOf(layer, one.piece, weights_.formats());
      PlaceFfnAt(working_.data(), &source);
      kernels::DequantizeInt4(one.packed.up, source.up, Writable(source.up));
      kernels::DequantizeInt4(one.packed.down, source.down, Writable(source.down));
    }
    TakePiece(one.piece, source, one.piece.slice.first, gated, new_expert(one.piece.expert),
              change.to_part.slice.first);
  }
  weights_.End(layer, phase);
}

}  // namespace convene::weights
