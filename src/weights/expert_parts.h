// Parts of a layer's experts: what a rank has in a phase, what of it another rank wants, and how
// that is taken over from one packed expert into another. Who sends what when is the runtime's.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_spec.h"
#include "strategy/layout.h"
#include "weights/model_weights.h"
#include "weights/share.h"

namespace convene::weights {

// Some experts, and of each the same columns of its intermediate size.
struct ExpertPart {
  strategy::Part experts;
  strategy::Part slice;

  bool operator==(const ExpertPart&) const = default;
};
ExpertPart ExpertPartOf(const model::MoeSpec& whole, const Share& share,
                        const WeightFormats& formats);

// An expert of so many columns, without data.
FfnWeights FfnOf(const WeightFormats& formats, const model::ActivationSpec& activation, int hidden,
                 int intermediate);
uint64_t SizeBytes(const FfnWeights& ffn);  // of its matrices
// Its matrices one behind the other from `at` on, or nowhere (null). Returns their bytes.
uint64_t PlaceFfnAt(const std::byte* at, FfnWeights* ffn);

// Columns of one expert, which it has in the layer as a whole.
struct ExpertPiece {
  int expert = 0;
  strategy::Part slice;
};

// What `to` has of `from`, expert after expert, in pieces of `most_columns` at most (a multiple of
// int4 groups).
std::vector<ExpertPiece> PiecesOf(const ExpertPart& from, const ExpertPart& to, int most_columns);

// What `to` has and `from` has not, likewise. Where an expert of `to` is partly in `from`, what
// lies before its columns there and what lies behind them are pieces of their own.
std::vector<ExpertPiece> PiecesBeside(const ExpertPart& from, const ExpertPart& to,
                                      int most_columns);

// Copies `piece` from an expert that has columns from `first` on into one that has some from
// `target_first` on; both have it. The matrices of the target are written.
void TakePiece(const ExpertPiece& piece, const FfnWeights& from, int first, bool gated,
               const FfnWeights& target, int target_first);
// Its two halves, for threads that share the work.
void TakeUp(const ExpertPiece& piece, const FfnWeights& from, int first, bool gated,
            const FfnWeights& target, int target_first);
void TakeDown(const ExpertPiece& piece, const FfnWeights& from, int first, const FfnWeights& target,
              int target_first);
// Before pieces are copied into an expert of `columns`: what none of them fills.
void FillPadding(const FfnWeights& target, bool gated, int columns);

}  // namespace convene::weights
