// How many chunks an expert pipeline should have, and of what (tokens or experts): what the
// simulator says of each candidate on rates that were measured, beside the closed form of EPS-MoE
// (section 3.3). Pure; measuring is runtime/measure_ranks.h.
#pragma once

#include <string>
#include <vector>

#include "cost/expected_sizes.h"
#include "cost/rates.h"
#include "model/model_spec.h"
#include "strategy/step.h"

namespace convene::planner {

// The rates that decide how many chunks are best: what a rank has to itself,
struct RankStepRates {
  int cores = 1;
  double flops_per_second = 0;         // of its products with many rows
  double weight_bytes_per_second = 0;  // at which products with few rows read their weights
  // Each expert of a chunk takes some time besides that of its rows: as long as so many rows more.
  double rows_per_expert = 0;

  bool operator==(const RankStepRates&) const = default;
};

// and what all ranks share; an exchange is as fast as the slowest of them.
struct StepRates {
  std::vector<RankStepRates> ranks = {RankStepRates{}};  // by rank; only one: all are like it
  double link_bytes_per_second = 0;       // that a rank sends while all do, and receives as much
  double link_latency = 0;                // seconds of an exchange that is waited for
  double link_latency_beside = 0;         // of one while the rank computes
  double link_core_seconds_per_byte = 0;  // that sending and receiving take from computing
  double task_seconds = 0;                // of an experts task with nothing to do

  const RankStepRates& of(int rank) const { return ranks[ranks.size() == 1 ? 0 : rank]; }
};

struct PipelineQuestion {
  const model::ModelSpec& spec;
  strategy::Roles roles = {};
  strategy::ElementBytes bytes = {};
  StepRates rates = {};
  double tokens_per_rank = 0;  // of the step that counts
  // How often tokens visit the experts, as it was recorded; empty: all alike.
  cost::ExpertShares shares = {};
};

// All pipelines that are compared: no chunks; then powers of two and numbers between them, up to
// the number of experts of the rank with the fewest, each cut by tokens and by experts.
std::vector<strategy::Pipeline> PipelineCandidates(const model::ModelSpec& spec,
                                                   const strategy::Roles& roles);

struct PricedPipeline {
  strategy::Pipeline pipeline = {};
  double seconds = 0;  // of a layer with experts
};

// The seconds that N chunks save: gain(N) = min(communication, computation) (N - 1) / N -
// (per_chunk N + once), which is largest at N = sqrt(min(communication, computation) / per_chunk).
struct ClosedForm {
  double communication = 0;  // seconds of a layer's experts, not divided
  double computation = 0;    // of the rank that computes longest
  double per_chunk = 0;      // fixed costs
  double once = 0;
  int chunks = 1;  // within 1 and the experts of a rank

  double Gain(double num_chunks) const;
};

struct PipelineChoice {
  strategy::Pipeline pipeline = {};        // chunks 1: plain
  double seconds = 0;                      // predicted of a layer
  double plain_seconds = 0;                // and without chunks
  std::vector<PricedPipeline> candidates;  // in the order of PipelineCandidates
  ClosedForm closed_form;                  // for the chosen cut

  double speedup() const { return seconds > 0 ? plain_seconds / seconds : 1; }
};

// A choice that is faster than plain by less than 10 % is plain: predictions are not that good (32
// tokens per rank: 8 % foreseen, 6 % lost, docs/results/ranks.md).
PipelineChoice ChoosePipeline(const PipelineQuestion& question);

// Predicted seconds of a layer with experts, with so many tokens per rank.
double PredictLayerSeconds(const PipelineQuestion& question, const strategy::Pipeline& pipeline,
                           double tokens_per_rank);

// The number of tokens per rank from which on the pipeline is faster than plain; above
// tokens_per_rank if nowhere below it.
int FasterFromTokens(const PipelineQuestion& question, const strategy::Pipeline& pipeline);

// "pipeline: 6 chunks of tokens from 128 tokens per step (predicted 1.31 x plain; closed form 7)"
std::string Describe(const PipelineChoice& choice, int from_tokens);

}  // namespace convene::planner
