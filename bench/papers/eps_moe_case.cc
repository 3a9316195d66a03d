#include "bench/papers/eps_moe_case.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace convene::papers {

const cost::MachineProfile& MachineOfPaper() {
  static const cost::MachineProfile machine = Machine("h800-nvlink");
  return machine;
}

planner::PhaseTables Layer(const model::ModelSpec& spec, const Setup& setup,
                           const planner::PhaseStep& step) {
  const planner::PriceStep price = planner::PriceOn(
      MachineOfPaper(), {.order = setup.order,
                         .comm_budget = setup.comm_budget,
                         .exchange_multiprocessors = setup.exchange_multiprocessors});
  const std::vector<planner::AttentionStrategy> attention = {{1, setup.num_ranks}};
  const std::vector<planner::ExpertStrategy> experts = {{setup.num_ranks, 1}};
  const auto tables = planner::PriceLayers({.spec = spec,
                                            .attention = attention,
                                            .experts = experts,
                                            .bytes = {.dispatched = setup.fp8_wire ? 1.0 : 2.0,
                                                      .returned = setup.fp8_wire ? 1.0 : 2.0,
                                                      .sums = setup.fp8_wire ? 1.0 : 2.0},
                                            .pipeline = setup.pipeline,
                                            .price = price},
                                           step);
  CHECK(tables.ok(), "{}", tables.error().message);
  return *tables;
}

strategy::Pipeline Chunks(int number, bool overlap) {
  return {.chunks = number, .cut = strategy::ChunkCut::kExperts, .overlap = overlap};
}

model::ModelSpec ExpertsAlone(int width, int experts_of_rank, int num_ranks) {
  model::ModelSpec spec = Model("DeepSeek-V2");
  model::LayerSpec layer = spec.layers.back();
  layer.attention = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 16, .value_dim = 16};
  layer.moe->num_experts = experts_of_rank * num_ranks;
  layer.moe->top_k = 1;
  layer.moe->num_expert_groups = layer.moe->top_expert_groups = 1;
  layer.moe->intermediate_size = width;
  layer.moe->shared_intermediate_size = 0;
  spec.layers = {layer};
  return spec;
}

int PartsOfExpert(int chunks, int experts_of_rank) { return std::max(1, chunks / experts_of_rank); }

planner::PhaseStep StepOfExperts(int num_ranks, int experts_of_rank, double rows) {
  return {.batch = num_ranks,
          .tokens = rows * experts_of_rank,
          .first_position = 0,
          .prompt_length = 0};
}

void Scored::Add(double is, double says, double error) {
  published.push_back(is);
  predicted.push_back(says);
  errors.push_back(error);
}

void Scored::Print(const char* what) const {
  fmt::print("\nMedian error of {}: {:.0f} %; rank correlation: {:.2f}; {} values.\n", what,
             100 * Median(errors), RankCorrelation(predicted, published), errors.size());
}

}  // namespace convene::papers
