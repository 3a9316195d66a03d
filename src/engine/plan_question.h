// What a search for a plan asks of the layers above planner/: how much memory a rank takes, how
// many bytes elements have, which formats go with weights. It searches nothing and opens nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan_question.h"

namespace convene::engine {

struct PlanSetting {
  std::optional<uint64_t> memory_per_rank = {};  // unset: an equal part of `memory_of_host`
  uint64_t memory_of_host = 0;                   // of all ranks together
  // Of each of all ranks, where they differ; it is then what ranks have.
  std::vector<uint64_t> rank_memory = {};
  bool is_one_host = false;  // of which fewer ranks then have all
  int step_tokens = 512;
  bool spills_kv = false;  // whether keys and values of a batch may lie on a disk
};

// Sets memory_of, experts_that_fit, spilled_that_fit, memory_per_rank, rank_memory, bytes_of and
// step_tokens, by the constraints and the format of the KV cache as they are then. The question's
// spec and workload outlive what is set.
void AnswerPlanQuestion(const PlanSetting& setting, planner::PlanQuestion& question);

// Names of the formats that `auto` tries, in its order.
std::vector<std::string> AutomaticFormats();

}  // namespace convene::engine
