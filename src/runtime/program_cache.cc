#include "runtime/program_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "strategy/transition.h"

namespace convene::runtime {
namespace {

bool HasSharedExpert(const std::vector<model::LayerSpec>& layers) {
  return std::any_of(layers.begin(), layers.end(), [](const model::LayerSpec& layer) {
    return layer.moe && layer.moe->shared_intermediate_size > 0;
  });
}

}  // namespace

const Program& ProgramCache::Get(const ProgramKey& key) {
  const auto found = std::find_if(programs_.begin(), programs_.end(),
                                  [&](const auto& program) { return program->key == key; });
  if (found != programs_.end()) {
    std::rotate(programs_.begin(), found, found + 1);
    return *programs_.front();
  }
  if (programs_.size() == kMostPrograms) programs_.pop_back();
  programs_.push_front(Build(key));
  return *programs_.front();
}

strategy::ExpertLoads ProgramCache::LoadsTo(strategy::Phase phase) const {
  CHECK(options_.decode_roles, "all phases have the same experts");
  const bool to_decode = phase == strategy::Phase::kDecode;
  const strategy::Roles& prefill = options_.step.roles;
  const strategy::Roles& decode = *options_.decode_roles;
  return {.from = to_decode ? prefill : decode,
          .to = to_decode ? decode : prefill,
          .bytes = options_.step.bytes.weights,
          .rounded = to_decode};
}

const Program& ProgramCache::ChangeTo(strategy::Phase phase, Change how) {
  std::unique_ptr<Program>& change = changes_[static_cast<size_t>(how)][static_cast<size_t>(phase)];
  if (change != nullptr) return *change;
  const strategy::ExpertLoads loads = LoadsTo(phase);
  auto schedule = std::make_shared<const schedule::Schedule>(
      how == Change::kMove
          ? strategy::BuildTransition(spec_, loads.from, loads.to, options_.step.bytes.weights)
          : strategy::BuildLoads(spec_, loads));
  ProgramKey key;
  key.phase = phase;
  change = std::make_unique<Program>(Program{
      .key = std::move(key), .schedule = schedule, .lanes = RankProgram(*schedule, options_.rank)});
  return *change;
}

std::unique_ptr<Program> ProgramCache::Build(const ProgramKey& key) const {
  strategy::StepOptions step = options_.step;
  step.pipeline = key.pipeline;
  step.paging = key.paging;
  step.spilled_kv = key.spilled_kv;
  step.head_chunks = key.head_chunks;
  step.largest_suffices = key.largest_suffices;
  if (key.phase == strategy::Phase::kDecode && options_.decode_roles) {
    step.roles = *options_.decode_roles;
  }
  if (key.loads_decode) step.loads = LoadsTo(strategy::Phase::kDecode);
  if (!options_.all_ranks) step.only_rank = options_.rank;
  auto schedule = std::make_shared<const schedule::Schedule>(
      key.encoder ? strategy::BuildEncoderStep(spec_, step) : strategy::BuildStep(spec_, step));
  return std::make_unique<Program>(Program{
      .key = key,
      .schedule = schedule,
      .lanes = RankProgram(*schedule, options_.rank),
      .computes_beside = key.pipeline.chunks > 1 || key.pipeline.micro_batches > 1 ||
                         HasSharedExpert(key.encoder ? spec_.encoder_layers : spec_.layers)});
}

}  // namespace convene::runtime
