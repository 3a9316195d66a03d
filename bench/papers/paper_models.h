// The models that papers measure, as shapes, and machines from presets: what the programs that
// reproduce their figures in simulation share.
#pragma once

#include <string>

#include "cost/machine_profile.h"
#include "model/model_spec.h"
#include "planner/hybrid_search.h"

namespace convene::papers {

// "Mixtral-8x7B", "Mixtral-8x22B", "DBRX", "Qwen1.5-MoE-A2.7B", "Qwen2-57B-A14B",
// "Qwen3-235B-A22B", "DeepSeek-V2".
model::ModelSpec Model(const std::string& name);

cost::MachineProfile Machine(const std::string& preset);

// Weights, activations and cache in bf16, all experts alike. Keeps references to both.
planner::HybridQuestion AskHybrid(const model::ModelSpec& spec, const cost::MachineProfile& machine,
                                  int num_ranks, int batch, int prompt_tokens, int gen_tokens);

// Of (speed-up - 1): |predicted - published| / |published|.
double ErrorOfGain(double predicted, double published);

// Spearman's, with mean ranks of ties; 0 of fewer than three.
double RankCorrelation(const std::vector<double>& a, const std::vector<double>& b);

double Median(std::vector<double> values);

}  // namespace convene::papers
