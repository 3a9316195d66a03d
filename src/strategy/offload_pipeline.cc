#include "strategy/offload_pipeline.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "strategy/ends.h"
#include "strategy/step_builder.h"
#include "strategy/work.h"

namespace convene::strategy {
namespace {

using schedule::LaneKind;
using schedule::TaskId;
using schedule::TaskKind;

// Work items are counted over the whole step: item n is micro-batch n % m of layer n / m, and page
// n is page n % m of the layer's weights.
class Builder {
 public:
  Builder(StepBuilder& step, const OffloadPipeline& parameters)
      : step_(step),
        p_(parameters),
        num_layers_(static_cast<int>(step.layers().size())),
        lead_(std::min(p_.lead, p_.micro_batches)),
        num_items_(num_layers_ * p_.micro_batches),
        num_pages_(num_items_ + (p_.next_step ? p_.micro_batches : 0)),
        through_(num_items_),
        attend_(num_items_),
        stage_(num_pages_),
        load_(num_pages_) {}

  void Run() {
    const int m = p_.micro_batches;
    for (int i = 0; i < m; ++i) {
      step_.UseMicroBatch(i);
      AddEmbedding(step_);
    }
    // Before the loop: the first micro-batches' attention, the first pages' staging.
    for (int n = 0; n < lead_; ++n) {
      Attention(n);
      Stage(m + n);
    }
    for (int n = 0; n < num_items_; ++n) {
      const RankTasks hidden =
          Add(TaskKind::kSendHidden, LaneKind::kLoad, n, {attend_[n]}, WorkOf(n).SendHidden(0));
      Load(n + m);
      Add(TaskKind::kPostAttention, LaneKind::kCompute, n, {hidden}, WorkOf(n).PostAttention(0));
      FeedForward(n);
      Attention(n + lead_);
      Stage(n + m + lead_);
    }
    for (int i = 0; i < m; ++i) {
      step_.UseMicroBatch(i);
      AddFinalNorm(step_);
    }
    step_.UseMicroBatch(-1);
    AddHead(step_, {});
  }

 private:
  // Of the item's layer, or the layer of a page for the next step.
  LayerWork WorkOf(int item) const {
    const int layer = item / p_.micro_batches;
    return {step_.spec(), step_.layers()[layer % num_layers_], layer, step_.options()};
  }

  RankTasks Add(TaskKind kind, LaneKind lane, int item, const std::vector<RankTasks>& after,
                schedule::Work work, int chunk = -1) {
    step_.UseMicroBatch(item % p_.micro_batches);
    return step_.OnLane(
        kind, lane, {.layer = item / p_.micro_batches, .chunk = chunk}, [&](int) { return work; },
        after);
  }

  // Of a page, which belongs to no micro-batch.
  RankTasks AddCopy(TaskKind kind, LaneKind lane, int page, const std::vector<RankTasks>& after,
                    schedule::Work work) {
    step_.UseMicroBatch(-1);
    return step_.OnLane(
        kind, lane, {.layer = page / p_.micro_batches, .chunk = page % p_.micro_batches},
        [&](int) { return work; }, after);
  }

  // Pre-attention, queries down, and attention on the host.
  void Attention(int item) {
    if (item >= num_items_) return;
    const LayerWork work = WorkOf(item);
    const RankTasks pre =
        Add(TaskKind::kPreAttention, LaneKind::kCompute, item, {}, work.PreAttention(0));
    const RankTasks qkv = Add(TaskKind::kSendQkv, LaneKind::kStore, item, {pre}, work.SendQkv(0));
    attend_[item] = Add(TaskKind::kAttend, LaneKind::kHost, item, {qkv}, work.Attend(0));
  }

  void FeedForward(int item) {
    const LayerWork work = WorkOf(item);
    const int layer = item / p_.micro_batches;
    const auto compute = [&](TaskKind kind, schedule::Work of, const std::vector<RankTasks>& after,
                             int chunk = -1) {
      through_[item] = Add(kind, LaneKind::kCompute, item, after, std::move(of), chunk);
    };
    // The first layer's pages were there before the step.
    std::vector<RankTasks> resident;
    if (layer > 0) resident.push_back(load_[(layer + 1) * p_.micro_batches - 1]);
    const model::LayerSpec& spec = step_.layers()[layer];
    if (!spec.moe) return compute(TaskKind::kDense, work.Dense(0), resident);
    compute(TaskKind::kRoute, work.Route(0), {});
    if (spec.moe->shared_intermediate_size > 0) compute(TaskKind::kShared, work.Shared(0), {});
    compute(TaskKind::kExperts, work.Experts(0, 0), resident, 0);
    compute(TaskKind::kFinish, work.Finish(0), {});
  }

  void Stage(int page) {
    if (page < p_.micro_batches || page >= num_pages_) return;
    const int reused = page - p_.pinned_pages;
    std::vector<RankTasks> after;
    if (reused >= p_.micro_batches) after.push_back(load_[reused]);
    stage_[page] = AddCopy(TaskKind::kStagePage, LaneKind::kStage, page, after,
                           WorkOf(page).StagePage(p_.micro_batches));
  }

  void Load(int page) {
    if (page >= num_pages_) return;
    const int layer = page / p_.micro_batches;
    std::vector<RankTasks> after = {stage_[page]};
    if (layer >= 2) after.push_back(through_[(layer - 1) * p_.micro_batches - 1]);
    load_[page] = AddCopy(TaskKind::kLoadPage, LaneKind::kLoad, page, after,
                          WorkOf(page).LoadPage(p_.micro_batches));
  }

  StepBuilder& step_;
  const OffloadPipeline& p_;
  int num_layers_;
  int lead_;
  int num_items_;
  int num_pages_;
  std::vector<RankTasks> through_;  // by item: its last task in the layer
  std::vector<RankTasks> attend_;   // by item
  std::vector<RankTasks> stage_;    // by page
  std::vector<RankTasks> load_;     // by page
};

}  // namespace

schedule::Schedule BuildOffloadPipeline(const model::ModelSpec& spec,
                                        const OffloadPipeline& parameters) {
  const OffloadPipeline& p = parameters;
  CHECK(p.micro_batches >= 1 && !spec.layers.empty() && !spec.has_encoder());
  CHECK(p.lead >= 1 && p.lead <= p.pinned_pages, "a lead of {} over {} pinned pages", p.lead,
        p.pinned_pages);
  const StepOptions options{.pipeline = {.micro_batches = p.micro_batches}, .bytes = p.bytes};
  StepBuilder step(spec, options, /*encoder=*/false);
  Builder(step, p).Run();
  return step.Take();
}

}  // namespace convene::strategy
