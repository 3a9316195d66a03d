#include "weights/expert_backup.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace convene::weights {
namespace {

using strategy::Phase;

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

}  // namespace

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
    const model::ActivationSpec& activation = layer.moe->activation;
    const auto size = [&](const ExpertPiece& piece) {
      return SizeBytes(FfnOf(formats, activation, whole.hidden_size, piece.slice.size));
    };
    for (const ExpertPiece& piece : OriginalsOf(parts)) bytes.originals += size(piece);
    for (const ExpertPiece& piece : RoundedOf(parts)) {
      bytes.backup += SizeBytes(BackupFfnOf(activation, whole.hidden_size, piece.slice.size));
      bytes.working = std::max(bytes.working, size(piece));
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
    for (const ExpertPiece& piece : OriginalsOf(parts)) {
      Original& one = kept.originals.emplace_back(piece, PieceOf(layer, piece));
      data += PlaceFfnAt(data, &one.packed);
    }
    for (const ExpertPiece& piece : RoundedOf(parts)) {
      Rounded& one = kept.rounded.emplace_back(
          piece,
          BackupFfnOf(whole.layers[layer].moe->activation, whole.hidden_size, piece.slice.size));
      data += PlaceAt(data, &one.backup);
    }
  }
}

FfnWeights ExpertBackup::PieceOf(int layer, const ExpertPiece& piece) const {
  const model::ModelSpec& whole = weights_.whole();
  return FfnOf(weights_.formats(), whole.layers[layer].moe->activation, whole.hidden_size,
               piece.slice.size);
}

bool ExpertBackup::IsGated(int layer) const {
  return weights_.whole().layers[layer].moe->activation.gated();
}

void ExpertBackup::KeepOriginals(hardware::ThreadPool* pool) {
  for (int layer = 0; layer < std::ssize(layers_); ++layer) {
    const std::vector<Original>& originals = layers_[layer].originals;
    if (originals.empty()) continue;
    const ExpertPart part = weights_.PartOf(layer, Phase::kPrefill);
    const std::vector<FfnWeights>& experts = weights_.ExpertsIn(layer, Phase::kPrefill);
    ForEach(pool, std::ssize(originals), [&](int64_t i) {
      const Original& kept = originals[static_cast<size_t>(i)];
      FillPadding(kept.packed, IsGated(layer), kept.piece.slice.size);
      TakePiece(kept.piece, experts[static_cast<size_t>(kept.piece.expert - part.experts.first)],
                part.slice.first, IsGated(layer), kept.packed, kept.piece.slice.first);
    });
  }
}

BackupQuality ExpertBackup::RoundPiece(int layer, const Rounded& kept) const {
  const ExpertPart part = weights_.PartOf(layer, Phase::kDecode);
  const FfnWeights& expert = weights_.ExpertsIn(
      layer, Phase::kDecode)[static_cast<size_t>(kept.piece.expert - part.experts.first)];
  // Memory of its own, since threads round several at a time, while the model is loaded.
  FfnWeights piece = PieceOf(layer, kept.piece);
  std::vector<std::byte> bytes(SizeBytes(piece) + 64);
  auto* const aligned = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
  PlaceFfnAt(aligned, &piece);
  FillPadding(piece, IsGated(layer), kept.piece.slice.size);
  TakePiece(kept.piece, expert, part.slice.first, IsGated(layer), piece, kept.piece.slice.first);
  return RoundFfn(piece, kept.backup);
}

void ExpertBackup::Round(hardware::ThreadPool* pool) {
  for (int layer = 0; layer < std::ssize(layers_); ++layer) {
    const std::vector<Rounded>& rounded = layers_[layer].rounded;
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
  const auto take = [&](const ExpertPiece& piece, const FfnWeights& source) {
    TakePiece(piece, source, piece.slice.first, gated, new_expert(piece.expert),
              change.to_part.slice.first);
  };
  const Layer& kept = layers_[static_cast<size_t>(layer)];
  if (phase == Phase::kPrefill) {
    for (const Original& one : kept.originals) take(one.piece, one.packed);
  } else {
    for (const Rounded& one : kept.rounded) {
      FfnWeights source = PieceOf(layer, one.piece);
      PlaceFfnAt(working_.data(), &source);
      DequantizeFfn(one.backup, source);
      take(one.piece, source);
    }
  }
  weights_.End(layer, phase);
}

}  // namespace convene::weights
