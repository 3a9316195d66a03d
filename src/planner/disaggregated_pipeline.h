// The time of a step with disaggregated experts (strategy/disaggregated_experts.h) when each task's
// seconds are a line over its rows (Pan et al., "FinDEP", 2025, section 4.1): in closed form, and
// as a timeline of the four lanes, which is the referee. Which degrees are best is
// disaggregated_solver.h; where the lines come from, disaggregated_lines.h.
#pragma once

#include <string>

#include "plan/lane_lines.h"
#include "strategy/step.h"

namespace convene::planner {

using plan::Line;
// Here keys are counted into the rows of attention.
using DisaggregatedLines = plan::LaneLines;

struct DisaggregatedPipeline {
  int micro_batches = 1;  // r1
  int chunks = 1;         // r2
  strategy::AttentionOrder order = strategy::AttentionOrder::kAsas;
  // As strategy::DisaggregatedExperts: dispatch waits for the shared expert, too (PPPipe).
  bool dispatch_after_shared = false;

  bool operator==(const DisaggregatedPipeline&) const = default;
};

// As a plan and a schedule have it.
strategy::Pipeline ToPipeline(const DisaggregatedPipeline& pipeline);

// "3 micro-batches and 4 chunks"
std::string WordsOfParts(int micro_batches, int chunks);
// "3 micro-batches and 4 chunks, AASS"
std::string Words(const DisaggregatedPipeline& pipeline);

// Seconds of all layers; `rows`: of a micro-batch on each attention rank, above 0. What is not of a
// layer with experts (embedding, dense layers, head) is not in it.
//
// The paper has a layer's period as the longest of what the attention lane, the expert stage and
// one micro-batch's way there and back take (Eqs. 12, 13). That is exact for ASAS. With AASS a path
// may also wait in turns: along the expert stage of one layer, back, and through all shared experts
// of the next one; that is the term it lacks, and with it the closed form equals the timeline
// (disaggregated_pipeline_test.cc).
double ClosedFormSeconds(const DisaggregatedLines& lines, const DisaggregatedPipeline& pipeline,
                         double rows);

// The same from start and end of every task, and what else the timeline says.
struct LaneTimes {
  double seconds = 0;
  double attention_busy = 0;  // seconds that the lane computes, as the next
  double experts_busy = 0;
  // Seconds in which neither group computes: communication that nothing hides (Table 7).
  double exposed = 0;
};
LaneTimes RunLanes(const DisaggregatedLines& lines, const DisaggregatedPipeline& pipeline,
                   double rows);

}  // namespace convene::planner
