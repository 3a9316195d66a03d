#include "strategy/disaggregated_experts.h"

#include <utility>

namespace convene::strategy {
namespace {

using schedule::LaneKind;
using schedule::Task;
using schedule::TaskId;
using schedule::TaskKind;

class Builder {
 public:
  explicit Builder(const DisaggregatedExperts& parameters) : p_(parameters) {
    CHECK(p_.num_layers >= 1 && p_.attention_ranks >= 1 && p_.expert_ranks >= 1 &&
          p_.micro_batches >= 1 && p_.chunks >= 1);
    schedule_.num_ranks = p_.attention_ranks + p_.expert_ranks;
  }

  schedule::Schedule Run() && {
    for (int rank = 0; rank < p_.attention_ranks; ++rank) BuildAttentionRank(rank);
    for (int rank = p_.attention_ranks; rank < schedule_.num_ranks; ++rank) BuildExpertRank(rank);
    return std::move(schedule_);
  }

 private:
  TaskId Add(Task task) {
    schedule_.tasks.push_back(std::move(task));
    return static_cast<TaskId>(schedule_.tasks.size()) - 1;
  }

  // Numbers follow the order in which all ranks enter; combines come after all dispatches.
  int Collective(TaskKind kind, int layer, int micro_batch, int chunk) const {
    const int place = (layer * p_.micro_batches + micro_batch) * p_.chunks + chunk;
    return kind == TaskKind::kDispatch ? place
                                       : p_.num_layers * p_.micro_batches * p_.chunks + place;
  }

  Task Transfer(TaskKind kind, int rank, int layer, int micro_batch, int chunk,
                std::vector<TaskId> after) const {
    const bool dispatch = kind == TaskKind::kDispatch;
    const bool sends = dispatch == (rank < p_.attention_ranks);
    return {.kind = kind,
            .lane = {rank, dispatch ? LaneKind::kSend : LaneKind::kReceive},
            .layer = layer,
            .micro_batch = micro_batch,
            .chunk = chunk,
            .after = std::move(after),
            .collective = Collective(kind, layer, micro_batch, chunk),
            .work = !sends     ? schedule::Work{}
                    : dispatch ? p_.dispatch
                               : p_.combine};
  }

  void BuildAttentionRank(int rank) {
    // Of each micro-batch what its next attention waits for: the residual sum.
    std::vector<std::vector<TaskId>> before(p_.micro_batches);
    for (int layer = 0; layer < p_.num_layers; ++layer) {
      const auto shared = [&](int micro_batch, TaskId attention) {
        return Add({.kind = TaskKind::kShared,
                    .lane = {rank, LaneKind::kCompute},
                    .layer = layer,
                    .micro_batch = micro_batch,
                    .after = {attention},
                    .work = p_.shared});
      };
      std::vector<TaskId> attention;
      std::vector<TaskId> last;  // of a micro-batch's compute in this layer
      for (int i = 0; i < p_.micro_batches; ++i) {
        attention.push_back(Add({.kind = TaskKind::kAttention,
                                 .lane = {rank, LaneKind::kCompute},
                                 .layer = layer,
                                 .micro_batch = i,
                                 .after = std::exchange(before[i], {}),
                                 .work = p_.attention}));
        last.push_back(attention.back());
        if (p_.shared_expert && p_.order == AttentionOrder::kAsas) {
          last.back() = shared(i, attention.back());
        }
      }
      if (p_.shared_expert && p_.order == AttentionOrder::kAass) {
        for (int i = 0; i < p_.micro_batches; ++i) last[i] = shared(i, attention[i]);
      }
      for (int i = 0; i < p_.micro_batches; ++i) {
        const TaskId ready = p_.dispatch_after_shared ? last[i] : attention[i];
        for (int j = 0; j < p_.chunks; ++j) {
          Add(Transfer(TaskKind::kDispatch, rank, layer, i, j, {ready}));
        }
        before[i].push_back(last[i]);
        for (int j = 0; j < p_.chunks; ++j) {
          before[i].push_back(Add(Transfer(TaskKind::kCombine, rank, layer, i, j, {})));
        }
      }
    }
  }

  void BuildExpertRank(int rank) {
    for (int layer = 0; layer < p_.num_layers; ++layer) {
      for (int i = 0; i < p_.micro_batches; ++i) {
        for (int j = 0; j < p_.chunks; ++j) {
          const TaskId arrived = Add(Transfer(TaskKind::kDispatch, rank, layer, i, j, {}));
          const TaskId computed = Add({.kind = TaskKind::kExperts,
                                       .lane = {rank, LaneKind::kCompute},
                                       .layer = layer,
                                       .micro_batch = i,
                                       .chunk = j,
                                       .after = {arrived},
                                       .work = p_.experts});
          Add(Transfer(TaskKind::kCombine, rank, layer, i, j, {computed}));
        }
      }
    }
  }

  const DisaggregatedExperts& p_;
  schedule::Schedule schedule_;
};

}  // namespace

schedule::Schedule BuildDisaggregatedExperts(const DisaggregatedExperts& parameters) {
  return Builder(parameters).Run();
}

}  // namespace convene::strategy
