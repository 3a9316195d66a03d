// What commands ask of the search when they plan for themselves: the question for the ranks, the
// model and the options that are here, and what the search answered as `convene plan --json` has
// it. Which answer is used is plan_by_default.h and plan_again.h.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/model_options.h"
#include "cost/machine_profile.h"
#include "engine/plan_question.h"
#include "model/model_spec.h"
#include "planner/plan_question.h"
#include "planner/plan_search.h"
#include "planner/step_pricer.h"
#include "planner/workload.h"

namespace convene::cli {

// Seconds of a clock that only goes on.
double SecondsNow();

// What is asked of a search for ranks of this host or of several, with all that the question refers
// to. It stays where it is.
struct AskedQuestion {
  planner::Workload workload;
  cost::MachineProfile profile;  // what is known of the machine; before the search
  planner::MeasuredSource source{profile};
  planner::PlanQuestion question;
  engine::PlanSetting setting = {};  // that the question was answered by
  int num_threads = 0;               // of each rank, its share

  AskedQuestion(const ModelOptions& options, const model::ModelSpec& spec)
      : workload(options.workload), question{.spec = spec, .workload = workload, .source = source} {
    workload.batch = options.load.max_sequences;
  }
};

// Null: what is here to be used cannot be found out; loading will say why.
std::unique_ptr<AskedQuestion> AskQuestion(const ModelOptions& options,
                                           const model::ModelSpec& spec, int num_ranks);

// With alternatives and reasons, as `convene plan --json` has them; null where the model's
// configuration cannot be read, which loading it will say.
nlohmann::ordered_json ReportOf(const ModelOptions& options, planner::PlanSearch& search,
                                const planner::PlanAnswer& answer,
                                const cost::MachineProfile& costs);

}  // namespace convene::cli
