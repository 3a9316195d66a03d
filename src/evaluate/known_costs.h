// What steps cost on the ranks of this run: from the kept profile of the machine, if it has costs
// of as many ranks and threads over a link as fast as theirs that this version measured, and
// otherwise from a quick measurement, which is kept. What is decided by them is
// cli/plan_by_default.h and engine/choose_pipeline.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cost/machine_profile.h"
#include "device/device.h"
#include "engine/known_costs.h"
#include "evaluate/invented_model.h"
#include "evaluate/step_case.h"
#include "planner/step_pricer.h"

namespace convene::evaluate {

struct KnownCostsOptions {
  std::string profile_path;  // of the kept profile; it need not be there
  // Models and steps in place of those that a quick measurement takes, for tests; none: those.
  std::vector<ModelShape> shapes = {};
  std::vector<StepCase> cases = {};
  // Of a quick measurement, which takes a little longer: nobody is to wait for more than 20.
  double seconds = 12;
  std::function<std::unique_ptr<device::Device>()> make_device = {};  // as MeasureStepsOptions'
};

// The kept profile, if it has costs of such ranks that this version measured on this machine, with
// this instruction set. Errors: why it does not count.
Result<cost::MachineProfile> KeptProfile(const planner::RankSetup& setup, std::string_view isa,
                                         const std::string& path);

// *Collective*; what rank 0 finds counts. A quick measurement takes some ten seconds; it says so
// before, and is kept beside what the profile has of this machine (a profile of another machine is
// replaced). Error: no memory to measure with.
Result<engine::KnownCosts> KnownStepCosts(const engine::CostsRequest& request,
                                          const KnownCostsOptions& options);

// LoadOptions::step_costs with the kept profile.
engine::StepCostsSource KeptOrMeasuredCosts();

}  // namespace convene::evaluate
