// Where the chunks of experts should end. A token is dispatched with the first chunk that needs it
// and returns with the last, so that of even chunks the first carry most of the dispatch and the
// last most of what returns. Cuts that follow the expected bytes instead let the communication of a
// chunk hide behind the computation of others. Pure; how many chunks is pipeline_degree.h.
#pragma once

#include "planner/pipeline_degree.h"

namespace convene::planner {

// The pipeline, which is cut by experts, with the cuts of which the simulator says that a layer is
// fastest, or without any where none is faster than even chunks. Tried are the cuts that divide
// into equal parts a mixture of three: expected FLOPs, rows dispatched and rows returned.
PricedPipeline FitCuts(const PipelineQuestion& question, strategy::Pipeline pipeline);

}  // namespace convene::planner
