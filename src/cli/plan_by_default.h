// The plan of commands that run on several ranks and were given none: the best by costs that are
// kept, or measured at the first use, among those that compute what one rank would. The search is
// planner/plan_search.h.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/model_options.h"
#include "comm/group.h"
#include "cost/machine_profile.h"
#include "model/model_spec.h"
#include "plan/plan.h"
#include "planner/plan_question.h"

namespace convene::cli {

struct DefaultPlan {
  plan::Plan plan;
  std::string words;  // what was chosen and why, for people
  // As `convene plan --json` has it, with alternatives and reasons; null: ModelOptions::explains is
  // not set, or there was no search.
  nlohmann::ordered_json report = nullptr;
};

// On rank 0, before it loads a model. `resolved`: what options say, and otherwise what is usual;
// options that were given are constraints. Nothing where a layout was given, and no costs are kept.
// Where so many requests are there that a wrong choice costs more than trying plans
// (planner/verification_price.h), the best ones run first, and the choice is what they say.
// Where the search finds no plan, or options ask for what costs are not of, `resolved` and why.
// *Collective* with FollowRankZero (engine/ranks.h) where costs have to be looked for: nothing is
// measured where the layout was given, or where ranks share cores, whose costs would say little.
// Where memory has no room for the whole model, and nothing is known of the disk that experts are
// then read from, that is measured as well, and kept; or it is what is usual, which the words say.
std::optional<DefaultPlan> PlanByDefault(const ModelOptions& options, const model::ModelSpec& spec,
                                         const plan::Plan& resolved, comm::Group& ranks);

// The same report for a plan that was given, or for one process: what a search among all that the
// kept profile has costs of says of it and of the others. Nothing is measured. Errors: no profile
// is kept, it has no costs of such ranks, the search has no such plan; whose message says so.
Result<nlohmann::ordered_json> ExplainGivenPlan(const ModelOptions& options,
                                                const model::ModelSpec& spec,
                                                const plan::Plan& given, int num_started);

// Of one process whose requests are all there: how many of them run together, and the most tokens
// of a step, by costs that are kept of this machine; nothing is measured. Nothing where these are
// given, nothing is kept, the search has no plan, or experts are read from a disk: then what is
// read least decides (engine/choose_batch.h).
std::optional<DefaultPlan> PlanBatchAlone(const ModelOptions& options, const model::ModelSpec& spec,
                                          const plan::Plan& resolved);

struct KnownRanks {
  cost::MachineProfile profile;
  std::vector<uint64_t> memory = {};  // bytes of each; none: nobody asked
};

// What steps cost on these ranks, with what is kept of the machine: measured now, once, where
// nothing is kept that holds for them. *Collective* with FollowRankZero. `num_threads`: of each
// rank; unset: its share. `memory_budget`: of each rank, measuring included. Errors: ranks share
// cores and nothing is kept; those of measuring.
Result<KnownRanks> KeptOrMeasuredProfile(comm::Group& ranks, const std::string& format,
                                         bool int8_kv, plan::Wire wire,
                                         std::optional<int> num_threads,
                                         std::optional<uint64_t> memory_budget);

// Where ranks differ in memory by more than a twentieth, what each has, at most `budget` of it;
// otherwise nothing.
std::vector<uint64_t> UnlikeMemory(std::vector<uint64_t> memory, std::optional<uint64_t> budget);

// The first of the question's formats that fits memory as `plan` divides the model; none does: the
// last one, whose refusal says what would.
std::string FormatThatFits(const planner::PlanQuestion& question, const plan::Plan& plan,
                           int num_threads);

}  // namespace convene::cli
