#include "strategy/offload_pipeline.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "strategy/offload_items.h"
#include "strategy/step_builder.h"
#include "strategy/work.h"

namespace convene::strategy {
namespace {

using schedule::LaneKind;
using schedule::TaskKind;

// CGOPipe. Page n is page n % m of the streamed weights of layer n / m.
class PagedOrder {
 public:
  PagedOrder(OffloadItems& items, const OffloadPipeline& parameters)
      : items_(items),
        p_(parameters),
        lead_(std::min(p_.lead, p_.micro_batches)),
        num_pages_(items.count() + (p_.next_step ? p_.micro_batches : 0)),
        stage_(num_pages_),
        load_(num_pages_) {}

  void Run() {
    const int m = p_.micro_batches;
    // Before the loop: the first micro-batches' attention, the first pages' staging.
    for (int n = 0; n < lead_; ++n) {
      items_.AttendOnHost(n);
      Stage(m + n);
    }
    for (int n = 0; n < items_.count(); ++n) {
      const RankTasks hidden = items_.SendHidden(n);
      Load(n + m);
      // The first layer's pages were there before the step.
      std::vector<RankTasks> weights;
      if (n >= m) weights.push_back(load_[(n / m + 1) * m - 1]);
      items_.Finish(n, {hidden}, weights);
      items_.AttendOnHost(n + lead_);
      Stage(n + m + lead_);
    }
  }

 private:
  void Stage(int page) {
    const int m = p_.micro_batches;
    if (p_.pinned_pages == 0 || page < m || page >= num_pages_) return;
    const int reused = page - p_.pinned_pages;
    std::vector<RankTasks> after;
    if (reused >= m) after.push_back(load_[reused]);
    stage_[page] = items_.AddCopy(TaskKind::kStagePage, LaneKind::kStage, page / m, page % m, after,
                                  items_.WorkOf(page / m).StagePage(m));
  }

  void Load(int page) {
    if (page >= num_pages_) return;
    const int m = p_.micro_batches;
    std::vector<RankTasks> after;
    if (p_.pinned_pages > 0) after.push_back(stage_[page]);
    if (page / m >= 2) after.push_back(items_.through((page / m - 1) * m - 1));
    load_[page] = items_.AddCopy(TaskKind::kLoadPage, LaneKind::kLoad, page / m, page % m, after,
                                 items_.WorkOf(page / m).LoadPage(m));
  }

  OffloadItems& items_;
  const OffloadPipeline& p_;
  int lead_;
  int num_pages_;
  std::vector<RankTasks> stage_;  // by page
  std::vector<RankTasks> load_;   // by page
};

// The orders that load the streamed weights of a layer as a whole, from pinned memory.
class LayerOrder {
 public:
  LayerOrder(OffloadItems& items, const OffloadPipeline& parameters)
      : items_(items),
        p_(parameters),
        loads_behind_(p_.loads_behind || p_.order == OffloadOrder::kLayerwise),
        weights_(items.num_layers() + 1),
        cache_(items.count()),
        stored_(items.count()) {}

  void Run() {
    if (AttendsOnHost(p_.order)) {
      OnHost(std::min(p_.order == OffloadOrder::kS2 ? 2 : 1, p_.micro_batches));
    } else {
      for (int n = 0; n < items_.count(); ++n) OnDevice(n);
    }
  }

 private:
  bool loads_cache() const { return p_.order == OffloadOrder::kS4; }

  // The next layer's weights, into the room of the last one's, before a layer's first item.
  void LoadBefore(int item) {
    if (loads_behind_ || item % p_.micro_batches != 0) return;
    std::vector<RankTasks> after;
    if (item > 0) after.push_back(items_.through(item - 1));
    Load(items_.LayerOf(item) + 1, after);
  }
  // Without overlap: behind a layer's last item.
  void LoadBehind(int item) {
    if (!loads_behind_ || (item + 1) % p_.micro_batches != 0) return;
    Load(items_.LayerOf(item) + 1, {items_.through(item)});
  }
  void Load(int layer, const std::vector<RankTasks>& after) {
    if (layer == items_.num_layers() && !p_.next_step) return;
    weights_[layer] = items_.AddCopy(TaskKind::kLoadPage, LaneKind::kLoad, layer, 0, after,
                                     items_.WorkOf(layer).LoadPage(1));
  }
  void Finish(int item, const std::vector<RankTasks>& after) {
    std::vector<RankTasks> weights;
    if (items_.LayerOf(item) > 0) weights.push_back(weights_[items_.LayerOf(item)]);
    items_.Finish(item, after, weights);
    LoadBehind(item);
  }

  // Attention in the host's memory, so many items ahead.
  void OnHost(int lead) {
    for (int n = 0; n < lead; ++n) items_.AttendOnHost(n);
    for (int n = 0; n < items_.count(); ++n) {
      const RankTasks hidden = items_.SendHidden(n);
      LoadBefore(n);
      Finish(n, {hidden});
      items_.AttendOnHost(n + lead);
    }
  }

  // Keys and values of an item go up while the item before it is computed, into one of two buffers,
  // from which new ones have gone down.
  void LoadCache(int item) {
    if (item >= items_.count() || !loads_cache()) return;
    std::vector<RankTasks> after;
    if (item >= 2) after.push_back(stored_[item - 2]);
    cache_[item] =
        items_.Add(TaskKind::kReadKv, LaneKind::kLoad, item, after,
                   items_.WorkOf(items_.LayerOf(item)).LoadKv(0), item % p_.micro_batches);
  }
  void OnDevice(int item) {
    const LayerWork work = items_.WorkOf(items_.LayerOf(item));
    const int part = item % p_.micro_batches;
    if (item == 0) LoadCache(0);
    LoadBefore(item);
    LoadCache(item + 1);
    items_.Add(TaskKind::kPreAttention, LaneKind::kCompute, item, {}, work.PreAttention(0));
    std::vector<RankTasks> cache;
    if (loads_cache()) cache.push_back(cache_[item]);
    const RankTasks attended =
        items_.Add(TaskKind::kAttend, LaneKind::kCompute, item, cache, work.Attend(0), part);
    if (loads_cache()) {
      stored_[item] =
          items_.Add(TaskKind::kWriteKv, LaneKind::kStore, item, {attended}, work.StoreKv(0), part);
    }
    Finish(item, {});
  }

  OffloadItems& items_;
  const OffloadPipeline& p_;
  bool loads_behind_;
  std::vector<RankTasks> weights_;  // by layer
  std::vector<RankTasks> cache_;    // by item, of kS4, as is the next
  std::vector<RankTasks> stored_;
};

}  // namespace

std::string_view Name(OffloadOrder order) {
  switch (order) {
    case OffloadOrder::kCgo:
      return "cgo";
    case OffloadOrder::kS2:
      return "s2";
    case OffloadOrder::kS3:
      return "s3";
    case OffloadOrder::kS4:
      return "s4";
    case OffloadOrder::kLayerwise:
      return "layerwise";
  }
  return "";
}

std::optional<OffloadOrder> OffloadOrderNamed(std::string_view name) {
  for (const OffloadOrder order : kOffloadOrders) {
    if (Name(order) == name) return order;
  }
  return std::nullopt;
}

schedule::Schedule BuildOffloadPipeline(const model::ModelSpec& spec,
                                        const OffloadPipeline& parameters) {
  const OffloadPipeline& p = parameters;
  CHECK(p.micro_batches >= 1 && !spec.layers.empty() && !spec.has_encoder());
  const StepOptions options{.pipeline = {.micro_batches = p.micro_batches}, .bytes = p.bytes};
  StepBuilder step(spec, options, /*encoder=*/false);
  OffloadItems items(step, p.micro_batches);
  items.Embed();
  if (p.order == OffloadOrder::kCgo) {
    CHECK(p.lead >= 1 && (p.pinned_pages == 0 || p.lead <= p.pinned_pages),
          "a lead of {} over {} pinned pages", p.lead, p.pinned_pages);
    PagedOrder(items, p).Run();
  } else {
    LayerOrder(items, p).Run();
  }
  items.Head();
  return step.Take();
}

}  // namespace convene::strategy
