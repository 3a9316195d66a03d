#include "engine/ranks.h"

#include <memory>
#include <string>
#include <variant>

#include "base/check.h"
#include "base/message.h"
#include "comm/first_ranks.h"
#include "engine/announce_load.h"
#include "engine/ask_for_costs.h"
#include "engine/fewer_ranks.h"
#include "engine/loaded_model.h"

namespace convene::engine {
namespace {

// What a rank has to say that rank 0 does not know of, while it loads and long after.
LoadObserver ObserverOf(int rank) {
  const auto tell = [rank](const std::string& line) { PrintNote("rank {}: {}\n", rank, line); };
  return {.planned = {}, .progress = {}, .decided = tell, .disk_is_slow = tell};
}

}  // namespace

Status FollowRankZero(comm::Group& group, const std::string& directory,
                      const StepCostsSource& step_costs, const TrialSource& trials,
                      const std::optional<LocalRank>& local) {
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
    if (const auto* fewer = std::get_if<AnnouncedFewer>(&*work)) {
      if (group.rank() >= fewer->num_ranks) continue;
      const std::unique_ptr<comm::Group> first = comm::FirstRanks(group, fewer->num_ranks);
      const Status followed = FollowRankZero(*first, directory, step_costs, trials,
                                             LocalRankAmongFirst(group.size(), fewer->num_ranks));
      if (!followed) last = followed;
      continue;
    }
    auto* load = std::get_if<AnnouncedLoad>(&*work);
    load->options.step_costs = step_costs;
    load->options.local = local;
    const Result<std::unique_ptr<LoadedModel>> model = LoadedModel::Load(
        directory.empty() ? load->directory : directory, load->options, ObserverOf(group.rank()));
    if (!model) {
      last = model.error();
      continue;
    }
    (*model)->transformer().FollowSteps();
  }
  return last;
}

}  // namespace convene::engine
