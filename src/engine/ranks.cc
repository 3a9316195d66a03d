#include "engine/ranks.h"

#include <memory>
#include <variant>

#include "base/check.h"
#include "engine/announce_load.h"
#include "engine/ask_for_costs.h"
#include "engine/loaded_model.h"

namespace convene::engine {

Status FollowRankZero(comm::Group& group, const std::string& directory,
                      const StepCostsSource& step_costs, const TrialSource& trials) {
  Status last;
  while (auto work = WaitForWork(group)) {
    if (const auto* wish = std::get_if<CostsWish>(&*work)) {
      AnswerCosts(group, *wish, step_costs);
      continue;
    }
    if (const auto* trial = std::get_if<AnnouncedTrial>(&*work)) {
      CHECK(trials, "rank 0 tries plans, and this rank does not know how");
      trials(group, directory.empty() ? trial->directory : directory, trial->question);
      continue;
    }
    auto* load = std::get_if<AnnouncedLoad>(&*work);
    load->options.step_costs = step_costs;
    const Result<std::unique_ptr<LoadedModel>> model = LoadedModel::Load(
        directory.empty() ? load->directory : directory, load->options, /*observer=*/{});
    if (!model) {
      last = model.error();
      continue;
    }
    (*model)->transformer().FollowSteps();
  }
  return last;
}

}  // namespace convene::engine
