// What sizes are to be expected before a step is routed: from the rows of each rank, how likely a
// token visits each expert, and where experts are. Not what one step will have: its mean.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/result.h"
#include "cost/sizes.h"

namespace convene::cost {

// Probabilities that a token visits an expert, by expert; they sum to top_k.
using ExpertShares = std::vector<double>;

ExpertShares UniformShares(int num_experts, int top_k);
// As often as they were counted. An expert has a share of at most 1: what is beyond goes to the
// others.
ExpertShares SharesFromCounts(const std::vector<double>& counts, int top_k);

// By layer the tokens that each expert had: {"layers": [{"experts": [counts ...]} ...]}, none of a
// layer that has no experts. Errors: anything else, a count that is negative, experts without any
// tokens.
Result<std::vector<std::vector<double>>> RouterCountsFromJson(const nlohmann::json& object);

struct ExpectedRouting {
  int top_k = 1;
  std::vector<ExpertShares> shares;  // by layer; one for all, where there is only one
  // By rank and chunk of the expert stage the experts that it computes (or a slice of each).
  std::vector<std::vector<std::vector<int>>> experts;
  // Into which the rows that come from other ranks are cut instead, where experts are one chunk. A
  // rank's own rows are then the chunks after these, half of them in each of two. 1: all rows are
  // one chunk, own ones too.
  int token_chunks = 1;
  // Into which all rows are cut evenly; sizes of one of them are a part of the step's.
  int micro_batches = 1;
  std::vector<double> rows = {};    // by rank, as are the next; none: 0
  std::vector<double> tokens = {};  // none: as rows
  std::vector<double> wanted = {};
  // Whether these rows are the same ones on all ranks, each of which has some of the layers.
  bool rows_pass_through = false;
  // Of this layer only wanted rows are routed (strategy::StepOptions::prunes_last_layer).
  int pruned_layer = -1;
  // Of what attention sees (SizeKind::kKeys and those after it), where somebody asks for it; of a
  // whole step.
  Sizes attention = {};
};

// A rank's experts from `first` on, by chunk; `ends`: of each chunk among the rank's experts
// (strategy/expert_cuts.h).
std::vector<std::vector<int>> CutIntoChunks(int first, const std::vector<int>& ends);

// A row goes to a rank once, with the first chunk of whose experts it visits one, and returns with
// the last. Visits of a token are drawn without repetition, with odds that give the shares;
// tokens are independent.
class ExpectedSizes {
 public:
  explicit ExpectedSizes(ExpectedRouting routing);

  double at(const schedule::Size& size) const;
  // Whether any size is of a part of the step, by chunks or micro-batches.
  bool is_cut() const;
  // Odds by expert: sets of top_k of them are as likely as the product of theirs. Of a layer, or of
  // all.
  const std::vector<double>& set_odds(int layer) const;

 private:
  struct RankOdds {
    std::vector<double> first;  // by chunk: a token's first visit to the rank is in it
    std::vector<double> last;
    double any = 0;  // a token visits the rank
  };

  const ExpertShares& shares(int layer) const;
  // Of a rank's rows, tokens, keys or wanted rows, those of the size's micro-batch.
  double Part(const std::vector<double>& by_rank, int rank, const schedule::Size& size) const;
  // Own rows of a rank that are routed in the size's layer and micro-batch; of -1: of all ranks.
  double RoutedRows(int rank, const schedule::Size& size) const;
  double RowsAt(const schedule::Size& size) const;
  double AttentionAt(const schedule::Size& size) const;
  double Returned(const schedule::Size& size, bool sent) const;
  double Slots(const schedule::Size& size) const;
  double Experts(const schedule::Size& size) const;

  ExpectedRouting routing_;
  std::vector<std::vector<RankOdds>> odds_;    // by entry of shares, and rank
  std::vector<std::vector<double>> set_odds_;  // by entry of shares, and expert
};

}  // namespace convene::cost
