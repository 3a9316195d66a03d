#include "strategy/offload_pipeline.h"

#include <algorithm>
#include <utility>

namespace convene::strategy {
namespace {

using schedule::LaneKind;
using schedule::Task;
using schedule::TaskId;
using schedule::TaskKind;

// Work items are counted over the whole step: item n is micro-batch n % m of layer n / m, and page
// n is page n % m of the layer's weights.
class Builder {
 public:
  explicit Builder(const OffloadPipeline& parameters) : p_(parameters) {
    CHECK(p_.num_layers >= 1 && p_.micro_batches >= 1);
    CHECK(p_.lead >= 1 && p_.lead <= p_.pinned_pages, "a lead of {} over {} pinned pages", p_.lead,
          p_.pinned_pages);
    lead_ = std::min(p_.lead, p_.micro_batches);
    num_items_ = p_.num_layers * p_.micro_batches;
    num_pages_ = num_items_ + (p_.next_step ? p_.micro_batches : 0);
    post_.resize(num_items_, -1);
    attend_.resize(num_items_, -1);
    stage_.resize(num_pages_, -1);
    load_.resize(num_pages_, -1);
  }

  schedule::Schedule Run() && {
    const int m = p_.micro_batches;
    // Before the loop: the first micro-batches' attention, the first pages' staging.
    for (int n = 0; n < lead_; ++n) {
      Attention(n);
      Stage(m + n);
    }
    for (int n = 0; n < num_items_; ++n) {
      const TaskId hidden =
          Add(TaskKind::kSendHidden, LaneKind::kLoad, n, {attend_[n]}, p_.send_hidden);
      Load(n + m);
      Post(n, hidden);
      Attention(n + lead_);
      Stage(n + m + lead_);
    }
    return std::move(schedule_);
  }

 private:
  // `item` as a place in the step; pages are chunks, all else has a micro-batch.
  TaskId Add(TaskKind kind, LaneKind lane, int item, std::vector<TaskId> after,
             const schedule::Work& work) {
    const bool page = kind == TaskKind::kLoadPage || kind == TaskKind::kStagePage;
    const int part = item % p_.micro_batches;
    std::erase(after, -1);  // what was done before the step
    schedule_.tasks.push_back({.kind = kind,
                               .lane = {0, lane},
                               .layer = item / p_.micro_batches % p_.num_layers,
                               .micro_batch = page ? -1 : part,
                               .chunk = page ? part : -1,
                               .after = std::move(after),
                               .work = work});
    return static_cast<TaskId>(schedule_.tasks.size()) - 1;
  }

  // Pre-attention, queries down, and attention on the host.
  void Attention(int item) {
    if (item >= num_items_) return;
    const TaskId above = item < p_.micro_batches ? -1 : post_[item - p_.micro_batches];
    const TaskId pre =
        Add(TaskKind::kPreAttention, LaneKind::kCompute, item, {above}, p_.pre_attention);
    const TaskId qkv = Add(TaskKind::kSendQkv, LaneKind::kStore, item, {pre}, p_.send_qkv);
    attend_[item] = Add(TaskKind::kAttend, LaneKind::kHost, item, {qkv}, p_.attend);
  }

  void Post(int item, TaskId hidden) {
    post_[item] = Add(TaskKind::kPostAttention, LaneKind::kCompute, item, {hidden, Resident(item)},
                      p_.post_attention);
  }

  // The last page of the item's layer; -1: it was there before the step.
  TaskId Resident(int item) const {
    const int layer = item / p_.micro_batches;
    return layer == 0 ? -1 : load_[(layer + 1) * p_.micro_batches - 1];
  }

  void Stage(int page) {
    if (page < p_.micro_batches || page >= num_pages_) return;
    const int reused = page - p_.pinned_pages;
    stage_[page] = Add(TaskKind::kStagePage, LaneKind::kStage, page,
                       {reused < p_.micro_batches ? -1 : load_[reused]}, p_.stage_page);
  }

  void Load(int page) {
    if (page >= num_pages_) return;
    const int layer = page / p_.micro_batches;
    const TaskId reused = layer < 2 ? -1 : post_[(layer - 1) * p_.micro_batches - 1];
    load_[page] =
        Add(TaskKind::kLoadPage, LaneKind::kLoad, page, {stage_[page], reused}, p_.load_page);
  }

  const OffloadPipeline& p_;
  int lead_ = 1;
  int num_items_ = 0;
  int num_pages_ = 0;
  std::vector<TaskId> post_;    // by item
  std::vector<TaskId> attend_;  // by item
  std::vector<TaskId> stage_;   // by page
  std::vector<TaskId> load_;    // by page
  schedule::Schedule schedule_;
};

}  // namespace

schedule::Schedule BuildOffloadPipeline(const OffloadPipeline& parameters) {
  return Builder(parameters).Run();
}

}  // namespace convene::strategy
