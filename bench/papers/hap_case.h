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

// Tokens that DeepSpeed-FastGen, the paper's engine, computes at once: its default
// max_ragged_batch_size.
inline constexpr int kStepTokensOfHap = 768;

// What is known of the paper's engine, its machines and its models; each can be left out, to see
// what it does.
struct ReadingOfHap {
  // The head is divided, and shared experts where routed ones are slices, as in the engine's code.
  bool divides_rest = true;
  // Its exchanges (engine_exchanges.h): two all-reduces in a layer of tensor parallelism.
  bool has_engines_exchanges = true;
  // Nothing is computed beside an exchange: the time of a layer is the sum of its parts (section
  // III-B).
  bool has_sums = true;
  // Experts are always grouped, by kernels of CUTLASS.
  bool has_cutlass = true;
  // Each replica of attention has steps of its own, instead of all together one step of 768 tokens.
  bool has_own_steps = true;
  // 8 V100 are on two switches of PCI Express: two Xeon Scalable have 96 lanes, not 128.
  bool has_switches = true;
  // Tokens visit Mixtral's experts as often as was counted, and not all alike.
  bool has_counted_shares = true;
  // Otherwise all prompts are computed in one step.
  bool has_steps = true;
};

// A preset as the reading has it.
cost::MachineProfile MachineOfHap(const std::string& preset, const ReadingOfHap& reading = {});

// `machine`: of MachineOfHap. Errors: as planner::SearchHybrid.
Result<planner::HybridAnswer> SearchAsHap(const model::ModelSpec& spec,
                                          const cost::MachineProfile& machine, int num_ranks,
                                          int batch, int prompt_tokens, int gen_tokens,
                                          const ReadingOfHap& reading = {});

// Of the mean step of a phase of that answer, under one strategy of attention and one of the
// experts: a layer's seconds, which have one entry each.
Result<planner::PhaseTables> PriceAsHap(const model::ModelSpec& spec,
                                        const cost::MachineProfile& machine,
                                        const planner::AttentionStrategy& attention,
                                        const planner::ExpertStrategy& experts,
                                        const planner::PhaseStep& step,
                                        const ReadingOfHap& reading = {});

// Attention and experts are divided among all ranks in both phases.
bool IsTensorParallel(const planner::HybridCandidate& candidate, int num_ranks);
// Each rank has its own sequences, and whole experts.
bool IsExpertParallel(const planner::HybridCandidate& candidate, int num_ranks);

// "dp4 / ep4 > tp4 (upload)": attention / experts, and the experts in decode where they change.
std::string ShortText(const planner::HybridCandidate& candidate);

}  // namespace convene::papers
