#include "evaluate/logits_difference.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace convene::evaluate {
namespace {

double LogSumExp(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return std::log(sum) + top;
}

}  // namespace

double NegativeLogLikelihood(std::span<const float> logits, int32_t token) {
  return LogSumExp(logits) - logits[static_cast<size_t>(token)];
}

void LogitsDifference::Add(std::span<const float> reference, std::span<const float> candidate,
                           int32_t next_token) {
  CHECK(reference.size() == candidate.size(), "{} and {} logits", reference.size(),
        candidate.size());
  const double reference_norm = LogSumExp(reference);
  const double candidate_norm = LogSumExp(candidate);
  double kl = 0;
  double difference = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - reference_norm;
    const double log_q = candidate[i] - candidate_norm;
    kl += std::exp(log_p) * (log_p - log_q);
    const double distance = std::abs(double{candidate[i]} - reference[i]);
    difference += distance;
    max_difference_ = std::max(max_difference_, distance);
  }
  kl_ += kl;
  difference_ += difference / static_cast<double>(reference.size());
  num_same_top_ += std::max_element(reference.begin(), reference.end()) - reference.begin() ==
                   std::max_element(candidate.begin(), candidate.end()) - candidate.begin();
  const double reference_nll = reference_norm - reference[static_cast<size_t>(next_token)];
  const double candidate_nll = candidate_norm - candidate[static_cast<size_t>(next_token)];
  reference_nll_ += reference_nll;
  candidate_nll_ += candidate_nll;
  squared_change_ += (candidate_nll - reference_nll) * (candidate_nll - reference_nll);
  ++num_positions_;
}

double LogitsDifference::perplexity_change() const {
  return std::expm1(candidate_nll() - reference_nll());
}

double LogitsDifference::standard_error() const {
  if (num_positions_ < 2) return 0;
  const auto count = static_cast<double>(num_positions_);
  const double mean = candidate_nll() - reference_nll();
  const double variance = std::max(0.0, squared_change_ / count - mean * mean);
  return std::sqrt(variance / (count - 1)) * std::exp(mean);
}

}  // namespace convene::evaluate
