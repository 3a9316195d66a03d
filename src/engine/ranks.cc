#include "engine/ranks.h"

#include <memory>
#include <optional>

#include "engine/announce_load.h"
#include "engine/loaded_model.h"

namespace convene::engine {

Status FollowRankZero(comm::Group& group, const std::string& directory,
                      const StepCostsSource& step_costs) {
  Status last;
  while (std::optional<AnnouncedLoad> load = WaitForLoad(group)) {
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
