// How far a candidate's logits are from a reference's: what `convene compare` prints. This is
// arithmetic on rows of logits; the caller provides them.
#pragma once

#include <cstdint>
#include <span>

namespace convene::evaluate {

// -log of the probability that softmax(logits) gives to `token`.
double NegativeLogLikelihood(std::span<const float> logits, int32_t token);

// Sums over positions. All means are per position, and 0 where there is none.
class LogitsDifference {
 public:
  // One position: logits (vocab) of both, and the token that follows in the text.
  void Add(std::span<const float> reference, std::span<const float> candidate, int32_t next_token);

  int64_t num_positions() const { return num_positions_; }
  double reference_nll() const { return Mean(reference_nll_); }
  double candidate_nll() const { return Mean(candidate_nll_); }
  // candidate perplexity / reference perplexity - 1.
  double perplexity_change() const;
  // Of perplexity_change, from the differences of the positions, which are paired and therefore far
  // less spread than the likelihoods themselves.
  double standard_error() const;
  // KL divergence of the candidate's distribution from the reference's, in nats.
  double mean_kl() const { return Mean(kl_); }
  // The share of positions where both have the same most likely token.
  double top1_agreement() const { return Mean(static_cast<double>(num_same_top_)); }
  double mean_difference() const { return Mean(difference_); }  // of |logits|
  double max_difference() const { return max_difference_; }

 private:
  double Mean(double sum) const {
    return num_positions_ == 0 ? 0 : sum / static_cast<double>(num_positions_);
  }

  int64_t num_positions_ = 0;
  int64_t num_same_top_ = 0;
  double reference_nll_ = 0;
  double candidate_nll_ = 0;
  double squared_change_ = 0;  // of the negative log likelihoods
  double kl_ = 0;
  double difference_ = 0;
  double max_difference_ = 0;
};

}  // namespace convene::evaluate
