#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/exp.h"

namespace convene::engine {
namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every output bit depends on all of x.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Uniform in [0, 1): a function of its arguments, so that neither the batch nor a restart matters.
double Uniform(uint64_t seed, int64_t index) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const uint64_t stream = Mix(seed + kGolden);
  const uint64_t bits = Mix(stream + kGolden * (static_cast<uint64_t>(index) + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// The largest; NaN is none, and of nothing it is minus infinity.
float Largest(std::span<const float> values) {
  using Float4 [[gnu::vector_size(16)]] = float;
  constexpr size_t kLanes = 4;
  constexpr size_t kChains = 4;  // so that none waits for the comparison before
  const Float4 least = Float4{} - std::numeric_limits<float>::infinity();
  Float4 largest[kChains] = {least, least, least, least};
  size_t i = 0;
  for (; i + kChains * kLanes <= values.size(); i += kChains * kLanes) {
#pragma GCC unroll 4
    for (size_t k = 0; k < kChains; ++k) {
      Float4 value;
      std::memcpy(&value, &values[i + k * kLanes], sizeof(value));
      largest[k] = value > largest[k] ? value : largest[k];
    }
  }
  float result = -std::numeric_limits<float>::infinity();
  for (const Float4& chain : largest) {
    for (size_t lane = 0; lane < kLanes; ++lane) result = std::max(result, chain[lane]);
  }
  for (; i < values.size(); ++i) result = values[i] > result ? values[i] : result;
  return result;
}

// The first of `count` tokens at which the weights up to it exceed `share` (below 1) of their sum,
// of those that are not zero. At least one must be. weigh(first, weights) fills in the weights from
// token `first` on. It is asked by blocks, and for the block of the result twice, so that they stay
// in the cache of the core: those of a vocabulary would go through memory, with what the step had
// in the cache.
template <typename Weigh>
size_t FindShare(size_t count, double share, const Weigh& weigh) {
  constexpr size_t kBlock = 512;
  std::array<double, kBlock> buffer;
  const auto block_at = [&](size_t first) {
    const std::span<double> block = std::span(buffer).first(std::min(kBlock, count - first));
    weigh(first, block);
    return block;
  };
  std::vector<double> sums;
  for (size_t first = 0; first < count; first += kBlock) {
    sums.push_back(kernels::Sum(block_at(first)));
  }
  // Rounding may leave a rest beyond the end, hence the last one that is possible.
  const auto find = [](std::span<const double> parts, double& left) {
    size_t last_possible = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i] == 0) continue;
      last_possible = i;
      if (left < parts[i]) break;
      left -= parts[i];
    }
    return last_possible;
  };
  double left = share * kernels::Sum(sums);
  const size_t first = find(sums, left) * kBlock;
  return first + find(block_at(first), left);
}

// Word by word: where a form is strict, most of a vocabulary is not allowed.
void KeepAllowed(std::span<const uint64_t> allowed, std::span<float> scores) {
  constexpr size_t kBits = 64;
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (size_t begin = 0; begin < scores.size(); begin += kBits) {
    const uint64_t word = begin / kBits < allowed.size() ? allowed[begin / kBits] : 0;
    if (word == ~uint64_t{0}) continue;
    const size_t end = std::min(begin + kBits, scores.size());
    for (size_t id = begin; id < end; ++id) {
      if ((word >> (id - begin) & 1) == 0) scores[id] = kNever;
    }
  }
}

}  // namespace

Status Validate(const SamplingOptions& options) {
  const struct {
    const char* name;
    double value;
    SamplingRange range;
  } numbers[] = {{"temperature", options.temperature, kTemperatures},
                 {"top_p", options.top_p, kProbabilities},
                 {"min_p", options.min_p, kProbabilities},
                 {"repetition_penalty", options.repetition_penalty, kRepetitionPenalties},
                 {"presence_penalty", options.presence_penalty, kAnswerPenalties},
                 {"frequency_penalty", options.frequency_penalty, kAnswerPenalties}};
  for (const auto& [name, value, range] : numbers) {
    if (value >= range.min && value <= range.max) continue;  // false for NaN
    return Error{fmt::format("{} {} is out of range; it must be {} to {}", name, value, range.min,
                             range.max)};
  }
  for (const TokenBias& bias : options.logit_bias) {
    if (bias.bias >= kLogitBiases.min && bias.bias <= kLogitBiases.max) continue;
    return Error{fmt::format("the logit_bias {} of token {} is out of range; it must be {} to {}",
                             bias.bias, bias.token, kLogitBiases.min, kLogitBiases.max)};
  }
  if (options.top_k < 0) {
    return Error{
        fmt::format("top_k {} is out of range; it must be 0 (all) or more", options.top_k)};
  }
  return {};
}

SamplingOptions MergeSampling(const SamplingOptions& defaults, const GivenSampling& given) {
  SamplingOptions options = defaults;
  const bool narrows = given.top_k || given.top_p || given.min_p;
  if (narrows && options.temperature == 0) options.temperature = 1;
  options.temperature = given.temperature.value_or(options.temperature);
  options.top_k = given.top_k.value_or(options.top_k);
  options.top_p = given.top_p.value_or(options.top_p);
  options.min_p = given.min_p.value_or(options.min_p);
  options.repetition_penalty = given.repetition_penalty.value_or(options.repetition_penalty);
  options.presence_penalty = given.presence_penalty.value_or(options.presence_penalty);
  options.frequency_penalty = given.frequency_penalty.value_or(options.frequency_penalty);
  return options;
}

void Sampler::Observe(int32_t token) {
  const auto id = static_cast<size_t>(token);
  if (id >= is_seen_.size()) is_seen_.resize(id + 1);
  if (is_seen_[id]) return;
  is_seen_[id] = true;
  seen_.push_back(token);
}

void Sampler::ObserveAnswer(int32_t token) {
  Observe(token);
  if (options_.presence_penalty != 0 || options_.frequency_penalty != 0) ++answer_counts_[token];
}

int32_t Sampler::Sample(std::span<const float> logits, int64_t index, SamplerBuffers& buffers,
                        std::span<const uint64_t> allowed) {
  const double share = Uniform(options_.seed, index);
  const std::span<const float> scores = Penalise(logits, allowed, buffers.scores);
  if (!DrawsFromAll()) {
    Narrow(scores, buffers);
    const std::vector<Candidate>& kept = buffers.candidates;
    const auto weigh = [&](size_t first, std::span<double> weights) {
      const auto candidates = std::span(kept).subspan(first, weights.size());
      std::ranges::transform(candidates, weights.begin(), &Candidate::weight);
    };
    return kept[FindShare(kept.size(), share, weigh)].token;
  }
  const float largest = Largest(scores);
  if (!std::isfinite(largest)) return ArgMax(scores);
  const auto weigh = [&](size_t first, std::span<double> weights) {
    // Shares of a draw need no more digits than logits have.
    Weigh(kernels::RoughExpOfDifferences, scores.subspan(first, weights.size()), largest, weights);
  };
  return static_cast<int32_t>(FindShare(scores.size(), share, weigh));
}

std::span<const Candidate> Sampler::Distribution(std::span<const float> logits,
                                                 SamplerBuffers& buffers,
                                                 std::span<const uint64_t> allowed) {
  Narrow(Penalise(logits, allowed, buffers.scores), buffers);
  return buffers.candidates;
}

bool Sampler::TakesLargest() const {
  return options_.temperature == 0 && options_.repetition_penalty == 1.0 &&
         options_.presence_penalty == 0 && options_.frequency_penalty == 0 &&
         options_.logit_bias.empty();
}

bool Sampler::DrawsFromAll() const {
  return options_.temperature != 0 && options_.top_k == 0 && options_.top_p >= 1 &&
         options_.min_p == 0;
}

// Fills buffers.candidates.
void Sampler::Narrow(std::span<const float> scores, SamplerBuffers& buffers) const {
  std::vector<Candidate>& candidates = buffers.candidates;
  const int32_t likeliest = ArgMax(scores);
  const float largest = scores[static_cast<size_t>(likeliest)];
  if (options_.temperature == 0 || !std::isfinite(largest)) {
    candidates.assign(1, {1, likeliest});
    return;
  }
  KeepTopK(scores, buffers);
  buffers.ordered.resize(candidates.size());
  std::ranges::transform(candidates, buffers.ordered.begin(), [&](const Candidate& candidate) {
    return scores[static_cast<size_t>(candidate.token)];
  });
  buffers.weights.resize(candidates.size());
  Weigh(kernels::ExpOfDifferences, buffers.ordered, largest, buffers.weights);
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i].weight = buffers.weights[i];
  KeepTopP(candidates);
  if (options_.min_p == 0) return;
  // The likeliest has weight 1.
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < options_.min_p; });
}

void Sampler::Weigh(Exponentials exponentials, std::span<const float> scores, float largest,
                    std::span<double> weights) const {
  constexpr double kMost = std::numeric_limits<double>::max();  // infinity times 0 is no number
  const double scale = std::min(1 / options_.temperature, kMost);
  exponentials(scores, largest, scale, weights);
  const auto is_nan = [](double weight) { return std::isnan(weight); };
  if (is_nan(kernels::Sum(weights))) std::ranges::replace_if(weights, is_nan, 0.0);
}

std::span<const float> Sampler::Penalise(std::span<const float> logits,
                                         std::span<const uint64_t> allowed,
                                         std::vector<float>& scores) const {
  if (options_.repetition_penalty == 1.0 && answer_counts_.empty() && options_.logit_bias.empty() &&
      allowed.empty()) {
    return logits;
  }
  scores.assign(logits.begin(), logits.end());
  for (const TokenBias& bias : options_.logit_bias) {
    if (static_cast<size_t>(bias.token) < scores.size()) {
      scores[static_cast<size_t>(bias.token)] += bias.bias;
    }
  }
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (const int32_t token : seen_) {
    if (static_cast<size_t>(token) >= scores.size()) continue;
    float& score = scores[static_cast<size_t>(token)];
    score = score > 0 ? score / penalty : score * penalty;
  }
  for (const auto& [token, count] : answer_counts_) {
    if (static_cast<size_t>(token) >= scores.size()) continue;
    scores[static_cast<size_t>(token)] -=
        static_cast<float>(options_.presence_penalty + options_.frequency_penalty * count);
  }
  if (!allowed.empty()) KeepAllowed(allowed, scores);
  return scores;
}

void Sampler::KeepTopK(std::span<const float> scores, SamplerBuffers& buffers) const {
  std::vector<float>& ordered = buffers.ordered;
  std::vector<Candidate>& candidates = buffers.candidates;
  float threshold = -std::numeric_limits<float>::infinity();
  const auto top_k = static_cast<size_t>(options_.top_k);
  if (top_k > 0 && top_k < scores.size()) {
    ordered.assign(scores.begin(), scores.end());
    std::replace_if(
        ordered.begin(), ordered.end(), [](float x) { return std::isnan(x); }, threshold);
    const auto kth = ordered.begin() + static_cast<std::ptrdiff_t>(top_k) - 1;
    std::nth_element(ordered.begin(), kth, ordered.end(), std::greater<>());
    threshold = *kth;
  }
  // Written without a branch for each token: mostly nearly all of the vocabulary is kept, or
  // nothing.
  candidates.resize(scores.size());
  size_t num_kept = 0;
  for (size_t id = 0; id < scores.size(); ++id) {
    candidates[num_kept].token = static_cast<int32_t>(id);
    num_kept += scores[id] >= threshold ? 1 : 0;
  }
  candidates.resize(num_kept);
}

void Sampler::KeepTopP(std::vector<Candidate>& candidates) const {
  if (options_.top_p >= 1) return;
  const double total = std::accumulate(
      candidates.begin(), candidates.end(), 0.0,
      [](double sum, const Candidate& candidate) { return sum + candidate.weight; });
  // A heap, because the nucleus is mostly a handful of a vocabulary of 100,000.
  const auto is_less_likely = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.token > b.token;
  };
  std::make_heap(candidates.begin(), candidates.end(), is_less_likely);
  auto heap_end = candidates.end();
  double before = 0;  // weight of the tokens likelier than the next one
  do {
    std::pop_heap(candidates.begin(), heap_end, is_less_likely);
    --heap_end;
    before += heap_end->weight;
  } while (heap_end != candidates.begin() && before < options_.top_p * total);
  candidates.erase(candidates.begin(), heap_end);
  std::reverse(candidates.begin(), candidates.end());
}

int32_t ArgMax(std::span<const float> logits) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  const float largest = Largest(logits);
  if (largest == kLeast) return 0;
  return static_cast<int32_t>(std::ranges::find(logits, largest) - logits.begin());
}

double LogSumExp(std::span<const float> logits) {
  const float largest = logits[static_cast<size_t>(ArgMax(logits))];
  std::vector<double> shares(logits.size());
  kernels::ExpOfDifferences(logits, largest, 1, shares);
  return largest + std::log(kernels::Sum(shares));
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, int count) {
  std::vector<TokenLogprob> top(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    // NaN has no place in an order.
    const double logit =
        std::isnan(logits[id]) ? -std::numeric_limits<double>::infinity() : logits[id];
    top[id] = {static_cast<int32_t>(id), logit};
  }
  const auto end = top.begin() + std::min<std::ptrdiff_t>(count, std::ssize(top));
  std::partial_sort(top.begin(), end, top.end(), [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  });
  top.erase(end, top.end());
  const double normaliser = LogSumExp(logits);
  for (TokenLogprob& entry : top) entry.logprob -= normaliser;
  return top;
}

}  // namespace convene::engine
