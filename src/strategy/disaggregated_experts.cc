#include "strategy/disaggregated_experts.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "strategy/ends.h"
#include "strategy/step_builder.h"
#include "strategy/tensor_parallel.h"
#include "strategy/work.h"

namespace convene::strategy {
namespace {

using schedule::LaneKind;
using enum schedule::TaskKind;

// Builds one micro-batch after the other, each from its first layer to its last.
class Builder {
 public:
  Builder(StepBuilder& step, const DisaggregatedExperts& parameters)
      : step_(step), p_(parameters) {}

  // Returns the gathered rows.
  RankTasks MicroBatch() {
    const double hidden = step_.spec().hidden_size;
    returned_.clear();
    step_.UseRanks(&Role::owns_rows);
    AddEmbedding(step_);
    for (int layer = 0; layer < std::ssize(step_.layers()); ++layer) {
      const model::LayerSpec& spec = step_.layers()[layer];
      const LayerWork work(step_.spec(), spec, layer, step_.options());
      AddAttention(step_, work, layer, /*cross=*/false);
      if (spec.moe) {
        AddExperts(work, layer);
      } else {
        step_.Compute(kDense, {layer}, [&](int rank) { return work.Dense(rank); });
      }
    }
    const RankTasks normed = AddFinalNorm(step_);
    step_.UseAllRanks();
    return GatherWanted(step_, hidden * p_.bytes.activations, normed);
  }

 private:
  void AddExperts(const LayerWork& work, int layer) {
    const bool has_shared = step_.layers()[layer].moe->shared_intermediate_size > 0;
    const auto add_shared = [&] {
      return step_.Compute(kShared, {layer}, [&](int rank) { return work.Shared(rank); });
    };
    RankTasks route = step_.Compute(kRoute, {layer}, [&](int rank) { return work.Route(rank); });
    RankTasks ready = route;
    if (has_shared && p_.dispatch_after_shared) ready = add_shared();

    step_.UseAllRanks();
    // An expert rank has buffers for the rows of one layer of a micro-batch.
    step_.Collective(kCounts, LaneKind::kSend, {layer}, [&](int rank) { return work.Counts(rank); },
                     {ready, returned_});
    std::vector<RankTasks> dispatch;
    for (int chunk = 0; chunk < p_.chunks; ++chunk) {
      dispatch.push_back(step_.Collective(kDispatch, LaneKind::kSend, {layer, chunk},
                                          [&](int rank) { return work.Dispatch(rank, chunk); },
                                          {ready}));
    }
    if (has_shared && !p_.dispatch_after_shared) {
      if (p_.order == AttentionOrder::kAass) step_.Pause();
      step_.UseRanks(&Role::owns_rows);
      add_shared();
    }
    // Another layer's rows are packed where those of this one lie until they are sent.
    const auto has_experts = [](const model::LayerSpec& later) { return later.moe.has_value(); };
    std::vector<RankTasks> finished;
    if (std::any_of(step_.layers().begin() + layer + 1, step_.layers().end(), has_experts)) {
      finished.push_back(dispatch.back());
    }
    for (int chunk = 0; chunk < p_.chunks; ++chunk) {
      step_.UseRanks(&Role::has_experts);
      step_.Compute(kExperts, {layer, chunk}, [&](int rank) { return work.Experts(rank, chunk); },
                    {dispatch[chunk]});
      const RankTasks reduce = step_.Compute(kReduce, {layer, chunk},
                                             [&](int rank) { return work.Reduce(rank, chunk); });
      step_.UseAllRanks();
      finished.push_back(step_.Collective(kCombine, LaneKind::kReceive, {layer, chunk},
                                          [&](int rank) { return work.Combine(rank, chunk); },
                                          {reduce, route}));
    }
    step_.UseRanks(&Role::has_experts);
    returned_ = step_.OfUsedRanks(finished.back());
    step_.UseRanks(&Role::owns_rows);
    step_.Pause();
    step_.Compute(
        kFinish, {layer}, [&](int rank) { return work.Finish(rank); }, finished);
  }

  StepBuilder& step_;
  const DisaggregatedExperts& p_;
  RankTasks returned_;  // of expert ranks: the last combine of the layer before
};

}  // namespace

schedule::Schedule BuildDisaggregatedExperts(const model::ModelSpec& spec,
                                             const DisaggregatedExperts& parameters) {
  const DisaggregatedExperts& p = parameters;
  CHECK(p.attention_ranks >= 1 && p.expert_ranks >= 1 && p.micro_batches >= 1 && p.chunks >= 1);
  CHECK(!spec.has_encoder(), "an encoder's inputs stay whole");
  const StepOptions options{.roles = Roles::Disaggregated(p.attention_ranks, p.expert_ranks),
                            .pipeline = {.chunks = p.chunks, .micro_batches = p.micro_batches},
                            .bytes = p.bytes,
                            .only_rank = p.only_rank};
  StepBuilder step(spec, options, /*encoder=*/false);
  step.PauseOnlyWhereAsked();
  Builder builder(step, p);
  const std::vector<RankTasks> rows = step.BuildMicroBatches([&] { return builder.MicroBatch(); });
  AddHead(step, rows);
  return step.Take();
}

}  // namespace convene::strategy
