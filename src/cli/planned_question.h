// What a plan's file says of the question that the plan answers, and of the costs it was answered
// with: enough to ask it again when steps have run. The decisions themselves are plan/plan.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "cost/machine_profile.h"
#include "model/model_spec.h"
#include "plan/plan.h"
#include "planner/plan_question.h"

namespace convene::cli {

struct PlannedQuestion {
  model::ModelSpec spec;
  planner::Workload workload;
  cost::MachineProfile profile;  // costs of steps, and the rate of the disk
  std::string profile_name;      // where they were from
  int num_ranks = 1;
  int step_tokens = 512;
  int expand_from_tokens = 0;
  bool one_host = true;
  std::vector<uint64_t> memory_per_rank;  // by number of ranks, from 1
  std::vector<uint64_t> rank_memory;      // as the question's
  std::vector<std::string> formats;
  bool int8_kv = false;
  planner::Allowed allowed;
  planner::Constraints constraints;
  std::vector<std::string> passes_off;
};

// `config`: the model's config.json. Of many requests it has parts (Requests::InParts), of which
// sequences that run together and the memory for them are what they are of the requests.
nlohmann::ordered_json QuestionJson(const planner::PlanQuestion& question,
                                    const nlohmann::json& config,
                                    const cost::MachineProfile& profile,
                                    const std::string& profile_name);

// Of a plan that a file says, or a search found, what can be compared: without the setup, and
// without what the file adds of the workload that it was made for. `usual_step_tokens`: the
// question's.
plan::Plan DecisionsOf(plan::Plan plan, int usual_step_tokens);

// Errors: something is missing or does not fit; a configuration or costs that cannot be read.
Result<PlannedQuestion> PlannedQuestionFromJson(const nlohmann::json& json);

}  // namespace convene::cli
