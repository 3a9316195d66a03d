// Picks the next token of one request from its logits. It keeps the tokens seen so far, but no
// state of a random generator: the draw depends on the seed and on the token's index alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

namespace convene::engine {

// What is added to the logit of a token.
struct TokenBias {
  int32_t token = 0;
  float bias = 0;
};

// Applied in the order of vLLM, which is that of Hugging Face transformers where both have a step:
// biases, repetition penalty, frequency and presence penalty, temperature, top-k, top-p, min-p,
// then one draw.
struct SamplingOptions {
  double temperature = 1.0;         // 0: greedy, the largest logit, lowest id on ties
  int top_k = 0;                    // the k largest logits and their ties; 0: all
  double top_p = 1.0;               // the fewest most likely tokens that reach this probability
  double min_p = 0.0;               // tokens at least this share as likely as the likeliest
  double repetition_penalty = 1.0;  // logits of tokens seen: divided if positive, else multiplied
  // As in OpenAI's API, of tokens of the answer alone: subtracted from their logits, the first once
  // and the second as often as the token has come.
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::vector<TokenBias> logit_bias = {};  // of each token at most one
  uint64_t seed = 0;
};

// Inclusive; beyond them is a typing error, or what float32 cannot tell from the bound.
struct SamplingRange {
  double min;
  double max;
};
inline constexpr SamplingRange kTemperatures = {0, 100};
inline constexpr SamplingRange kProbabilities = {0, 1};
inline constexpr SamplingRange kRepetitionPenalties = {0.01, 100};
inline constexpr SamplingRange kAnswerPenalties = {-2, 2};  // presence and frequency
inline constexpr SamplingRange kLogitBiases = {-100, 100};

// Error: names the option out of its range.
Status Validate(const SamplingOptions& options);

// What a request says about sampling; the rest is the model's.
struct GivenSampling {
  std::optional<double> temperature = {};
  std::optional<int> top_k = {};
  std::optional<double> top_p = {};
  std::optional<double> min_p = {};
  std::optional<double> repetition_penalty = {};
  std::optional<double> presence_penalty = {};
  std::optional<double> frequency_penalty = {};
};

// `defaults` with what is given. Who gives top_k, top_p or min_p wants to sample: without a
// temperature it is 1 where the default is greedy.
SamplingOptions MergeSampling(const SamplingOptions& defaults, const GivenSampling& given);

struct Candidate {
  double weight = 0;  // proportional to the probability; 1 for the likeliest token
  int32_t token = 0;
};

// What a draw works in: as large as the vocabulary, and so of a thread and not of a request.
struct SamplerBuffers {
  std::vector<float> scores;    // (vocab), with penalties
  std::vector<float> ordered;   // (vocab)
  std::vector<double> weights;  // (vocab)
  std::vector<Candidate> candidates;

  static uint64_t BytesOf(int64_t vocab_size) {
    return static_cast<uint64_t>(vocab_size) *
           (2 * sizeof(float) + sizeof(double) + sizeof(Candidate));
  }
};

class Sampler {
 public:
  // `options` must be valid.
  explicit Sampler(const SamplingOptions& options) : options_(options) {}

  // A token of the prompt, for the repetition penalty.
  void Observe(int32_t token);
  // A token of the answer, for all penalties.
  void ObserveAnswer(int32_t token);

  // The `index`-th token of the answer from logits (vocab). Observe it if it is to count.
  // `allowed`: a bit for each token, in words of 64; the others, and those beyond its end, have no
  // part in anything. At least one must be allowed. Empty: all are.
  int32_t Sample(std::span<const float> logits, int64_t index, SamplerBuffers& buffers,
                 std::span<const uint64_t> allowed = {});

  // Whether Sample takes the largest logit, whatever was observed.
  bool TakesLargest() const;

  // What Sample draws from, each token once, in `buffers`. At least one.
  std::span<const Candidate> Distribution(std::span<const float> logits, SamplerBuffers& buffers,
                                          std::span<const uint64_t> allowed = {});

 private:
  std::span<const float> Penalise(std::span<const float> logits, std::span<const uint64_t> allowed,
                                  std::vector<float>& scores) const;
  bool DrawsFromAll() const;
  void Narrow(std::span<const float> scores, SamplerBuffers& buffers) const;
  // Of each score exp((score - largest) / temperature), 0 of NaN; by one of kernels/exp.h.
  using Exponentials = void (*)(std::span<const float> values, float largest, double scale,
                                std::span<double> results);
  void Weigh(Exponentials exponentials, std::span<const float> scores, float largest,
             std::span<double> weights) const;
  void KeepTopK(std::span<const float> scores, SamplerBuffers& buffers) const;
  void KeepTopP(std::vector<Candidate>& candidates) const;

  SamplingOptions options_;
  std::vector<bool> is_seen_;  // by token id, as far as the largest seen
  std::vector<int32_t> seen_;  // each once
  std::map<int32_t, int> answer_counts_;
};

// The largest of logits (vocab), the lowest id on ties; NaN is never the largest.
int32_t ArgMax(std::span<const float> logits);

struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0;  // natural logarithm of the softmax of the raw logits
};

// log of the sum of exp of logits (vocab), in double.
double LogSumExp(std::span<const float> logits);

// The `count` most likely tokens (fewer if the vocabulary is smaller), likeliest first, lowest id
// first on ties.
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, int count);

}  // namespace convene::engine
