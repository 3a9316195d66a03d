#include "weights/expert_parts.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/pack.h"
#include "kernels/packed_part.h"

namespace convene::weights {
namespace {

using strategy::Part;

Part Common(Part a, Part b) {
  const int first = std::max(a.first, b.first);
  return {first, std::max(0, std::min(a.first + a.size, b.first + b.size) - first)};
}

void AddPieces(int expert, Part slice, int most_columns, std::vector<ExpertPiece>& pieces) {
  for (int done = 0; done < slice.size; done += most_columns) {
    pieces.push_back({expert, {slice.first + done, std::min(most_columns, slice.size - done)}});
  }
}

}  // namespace

ExpertPart ExpertPartOf(const model::MoeSpec& whole, const Share& share,
                        const WeightFormats& formats) {
  return {ExpertsOf(whole, share), SliceOf(whole, share, formats)};
}

FfnWeights FfnOf(const WeightFormats& formats, const model::ActivationSpec& activation, int hidden,
                 int intermediate) {
  FfnWeights ffn;
  const int up_rows = activation.gated() ? kernels::GateUpRows(intermediate) : intermediate;
  ffn.up = {.format = formats.matrices, .group = formats.group, .rows = up_rows, .cols = hidden};
  ffn.down = {
      .format = formats.matrices, .group = formats.group, .rows = hidden, .cols = intermediate};
  return ffn;
}

uint64_t SizeBytes(const FfnWeights& ffn) { return ffn.up.size_bytes() + ffn.down.size_bytes(); }

uint64_t PlaceFfnAt(const std::byte* at, FfnWeights* ffn) {
  ffn->up.data = at;
  ffn->down.data = at != nullptr ? at + ffn->up.size_bytes() : nullptr;
  return SizeBytes(*ffn);
}

std::vector<ExpertPiece> PiecesOf(const ExpertPart& from, const ExpertPart& to, int most_columns) {
  std::vector<ExpertPiece> pieces;
  const Part experts = Common(from.experts, to.experts);
  const Part slice = Common(from.slice, to.slice);
  for (int expert = experts.first; expert < experts.first + experts.size; ++expert) {
    AddPieces(expert, slice, most_columns, pieces);
  }
  return pieces;
}

std::vector<ExpertPiece> PiecesBeside(const ExpertPart& from, const ExpertPart& to,
                                      int most_columns) {
  std::vector<ExpertPiece> pieces;
  const Part common = Common(from.slice, to.slice);
  const int end = to.slice.first + to.slice.size;
  for (int expert = to.experts.first; expert < to.experts.first + to.experts.size; ++expert) {
    const bool is_there =
        expert >= from.experts.first && expert < from.experts.first + from.experts.size;
    if (!is_there || common.size == 0) {
      AddPieces(expert, to.slice, most_columns, pieces);
      continue;
    }
    AddPieces(expert, {to.slice.first, common.first - to.slice.first}, most_columns, pieces);
    const int behind = common.first + common.size;
    AddPieces(expert, {behind, end - behind}, most_columns, pieces);
  }
  return pieces;
}

void TakePiece(const ExpertPiece& piece, const FfnWeights& from, int first, bool gated,
               const FfnWeights& target, int target_first) {
  TakeUp(piece, from, first, gated, target, target_first);
  TakeDown(piece, from, first, target, target_first);
}

void TakeUp(const ExpertPiece& piece, const FfnWeights& from, int first, bool gated,
            const FfnWeights& target, int target_first) {
  kernels::TakeRows({.from = from.up,
                     .first = piece.slice.first - first,
                     .target_first = piece.slice.first - target_first,
                     .count = piece.slice.size,
                     .gated = gated},
                    target.up, Writable(target.up));
}

void TakeDown(const ExpertPiece& piece, const FfnWeights& from, int first, const FfnWeights& target,
              int target_first) {
  kernels::TakeColumns({.from = from.down,
                        .first = piece.slice.first - first,
                        .target_first = piece.slice.first - target_first,
                        .count = piece.slice.size},
                       target.down, Writable(target.down));
}

void FillPadding(const FfnWeights& target, bool gated, int columns) {
  if (kernels::HasPadding(target.up, gated, columns)) {
    kernels::PackZeros(target.up, Writable(target.up));
  }
  if (kernels::HasPadding(target.down, /*gated=*/false, target.down.rows)) {
    kernels::PackZeros(target.down, Writable(target.down));
  }
}

}  // namespace convene::weights
