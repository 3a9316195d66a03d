// What the reproductions of HAP's figures share: its models, the batches that are tried, and the
// search as the paper's engine has it. Speed-ups are hap.cc, phases are hap_phases.h.
#pragma once

#include <string>

#include "bench/papers/paper_models.h"

namespace convene::papers {

inline constexpr const char* kModelsOfHap[] = {"Mixtral-8x7B", "Qwen1.5-MoE-A2.7B",
                                               "Qwen2-57B-A14B"};
// The paper does not name its batches; these were fixed before the first run.
inline constexpr int kBatchesOfHap[] = {1, 2, 4, 8, 16, 32};

// Tokens of all ranks together that DeepSpeed-FastGen, the paper's engine, computes at once: its
// default max_ragged_batch_size.
inline constexpr int kStepTokensOfHap = 768;

// `step_tokens`: of all ranks together; 0: all prompts in one step. Errors: as
// planner::SearchHybrid.
Result<planner::HybridAnswer> SearchAsHap(const model::ModelSpec& spec,
                                          const cost::MachineProfile& machine, int num_ranks,
                                          int batch, int prompt_tokens, int gen_tokens,
                                          int step_tokens = kStepTokensOfHap);

// Attention and experts are divided among all ranks in both phases.
bool IsTensorParallel(const planner::HybridCandidate& candidate, int num_ranks);
// Each rank has its own sequences, and whole experts.
bool IsExpertParallel(const planner::HybridCandidate& candidate, int num_ranks);

// "dp4 / ep4 > tp4 (upload)": attention / experts, and the experts in decode where they change.
std::string ShortText(const planner::HybridCandidate& candidate);

}  // namespace convene::papers
