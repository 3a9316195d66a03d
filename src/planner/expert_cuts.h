// Where the chunks of experts should end. A token is dispatched with the first chunk that needs it
// and returns with the last, so that of even chunks the first carry most of the dispatch and the
// last most of what returns. Cuts that follow the expected bytes instead let the communication of a
// chunk hide behind the computation of others. Pure; how many chunks is pipeline_degree.h.
#pragma once

#include <vector>

#include "planner/pipeline_degree.h"

namespace convene::planner {

// What cuts gain at most: more than that nobody has seen them gain (docs/results/chunk_cuts.md).
inline constexpr double kMostGainOfCuts = 1.25;

// The step whose chunks are cut.
struct ExpertStep {
  const model::ModelSpec& spec;
  const strategy::Roles& roles;
  int tokens_per_group = 0;
  const cost::ExpertShares& shares;  // as PipelineQuestion's
};

// Shares of a rank's experts at which chunks of the pipeline could end, as Pipeline::cuts: those
// that divide into equal parts a mixture of expected FLOPs, rows dispatched and rows returned, each
// once, but even ones. None where the pipeline is not cut by experts, or ranks have fewer experts
// than chunks.
std::vector<std::vector<double>> CutsToTry(const ExpertStep& step, strategy::Pipeline pipeline);

// The pipeline, which is cut by experts, with the cuts of which the simulator says that a layer is
// fastest, or without any where none of CutsToTry is faster than even chunks.
PricedPipeline FitCuts(const PipelineQuestion& question, strategy::Pipeline pipeline);

}  // namespace convene::planner
