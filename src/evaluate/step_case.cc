#include "evaluate/step_case.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <random>

namespace convene::evaluate {
namespace {

int BlocksOfSequence(const StepCase& step_case) {
  const int positions = step_case.context + step_case.tokens;
  return (positions + device::kKvBlockTokens - 1) / device::kKvBlockTokens;
}

int SequencesOfGroup(const StepCase& step_case, int num_groups) {
  return (step_case.batch + num_groups - 1) / num_groups;
}

}  // namespace

std::string Describe(const StepCase& step_case) {
  if (step_case.is_decode()) {
    return fmt::format("decode of {} behind {}", step_case.batch, step_case.context);
  }
  if (step_case.batch == 1) {
    return fmt::format("prefill of {} behind {}", step_case.tokens, step_case.context);
  }
  return fmt::format("prefill of {} x {} behind {}", step_case.batch, step_case.tokens,
                     step_case.context);
}

int NumKvBlocks(const StepCase& step_case, int num_groups) {
  return SequencesOfGroup(step_case, num_groups) * BlocksOfSequence(step_case);
}

int TokensOfGroup(const StepCase& step_case, int num_groups) {
  return SequencesOfGroup(step_case, num_groups) * step_case.tokens;
}

std::vector<std::vector<strategy::SequenceRows>> RowsOf(const StepCase& step_case,
                                                        const strategy::Roles& roles) {
  std::vector<std::vector<strategy::SequenceRows>> groups(static_cast<size_t>(roles.num_groups()));
  for (int i = 0; i < step_case.batch; ++i) {
    const int group = i % roles.num_groups();
    const int rank = roles.RankOfPart(group, 0);
    const auto& attention = roles.of(rank).attention;
    groups[group].push_back(
        {.first_position = step_case.context,
         .num_tokens = step_case.tokens,
         .num_wanted = 1,
         .is_expanded = attention && attention->Expands(step_case.prompt_length()),
         .prompt_length = step_case.prompt_length()});
  }
  return groups;
}

CaseSequences::CaseSequences(const StepCase& step_case, int num_groups, int vocab_size,
                             uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int32_t> token(0, vocab_size - 1);
  const auto batch = static_cast<size_t>(step_case.batch);
  tokens_.resize(batch);
  blocks_.resize(batch);
  for (int i = 0; i < step_case.batch; ++i) {
    tokens_[i].resize(static_cast<size_t>(step_case.tokens));
    for (int32_t& each : tokens_[i]) each = token(random);
    blocks_[i].resize(static_cast<size_t>(BlocksOfSequence(step_case)));
    const int before = i / num_groups * BlocksOfSequence(step_case);
    std::iota(blocks_[i].begin(), blocks_[i].end(), before);
    step_.push_back({.tokens = tokens_[i],
                     .first_position = step_case.context,
                     .blocks = blocks_[i],
                     .prompt_length = step_case.prompt_length(),
                     .first_logits_token = step_case.tokens - 1,
                     .largest_suffices = true,  // as of greedy answers
                     .group = i % num_groups});
  }
}

void WriteCache(device::KvCache& cache) {
  for (int layer = 0; layer < cache.num_layers(); ++layer) {
    for (int block = 0; block < cache.num_blocks(); ++block) {
      // Small numbers as bf16 and as float, and scales of them as int8.
      std::memset(cache.Address(layer, block), 0x3c, static_cast<size_t>(cache.BlockBytes(layer)));
    }
  }
}

}  // namespace convene::evaluate
