#include "runtime/rank_memory.h"

#include <utility>

#include "base/check.h"
#include "runtime/step_memory.h"

namespace convene::runtime {
namespace {

Status CreateFrames(device::Device& device, const model::ModelSpec& spec,
                    const TransformerOptions& options, const device::StepShape& shape,
                    memory::Ledger& ledger, RankMemory& memory) {
  for (const device::FrameShape& frame : shape.frames) {
    auto of_frame = device.CreateFrameMemory(spec, options.activations, frame, ledger);
    if (!of_frame) return of_frame.error();
    const auto index = static_cast<int>(memory.frames.size());
    device::Frame::Options frame_options = FrameOptions(spec, options, index);
    frame_options.expert_rows.pool = device.host_threads();
    memory.frames.push_back(std::make_unique<device::Frame>(
        spec, frame_options, *std::move(of_frame), options.parallel.group));
  }
  return {};
}

Status CreateMover(weights::PhasedWeights& weights, const ParallelOptions& parallel,
                   hardware::ThreadPool* pool, memory::Ledger& ledger, RankMemory& memory) {
  auto mover =
      ExpertMover::Create(weights, {.prefill = parallel.roles, .decode = *parallel.decode_roles},
                          *parallel.group, pool, ledger);
  if (!mover) return mover.error();
  memory.mover = *std::move(mover);
  if (!parallel.loads_experts) return {};
  auto backup = weights::ExpertBackup::Create(weights, ledger);
  if (!backup) return backup.error();
  memory.backup = *std::move(backup);
  return {};
}

}  // namespace

Result<RankMemory> RankMemory::Create(weights::WeightStore& weights, device::Device& device,
                                      const TransformerOptions& options, memory::Ledger& ledger) {
  CHECK(ledger.tier().kind == device.memory(), "{} is not the memory of the {}",
        ledger.tier().name(), device.name());
  const model::ModelSpec& spec = weights.spec();
  const ParallelOptions& parallel = options.parallel;
  const device::StepShape shape = StepShapeOf(spec, options);
  RankMemory memory;
  auto cache = device.CreateKvCache(spec, options.kv, options.num_kv_blocks, ledger);
  if (!cache) return cache.error();
  memory.cache = *std::move(cache);
  if (options.kv_spill) {
    auto spilled = SpilledKv::Create(*options.kv_spill, spec, *memory.cache, ledger);
    if (!spilled) return spilled.error();
    memory.spilled = *std::move(spilled);
  }
  auto stream = device.CreateStream(weights, *memory.cache,
                                    {.activations = options.activations,
                                     .wire = WireRowsOf(spec, options),
                                     .roles = parallel.SeenRoles(),
                                     .rank = parallel.rank(),
                                     .whole_spec = parallel.WholeOf(spec),
                                     .shape = shape,
                                     .dense_from_rows = options.dense_from_rows,
                                     .comm_budget = parallel.comm_budget},
                                    ledger);
  if (!stream) return stream.error();
  memory.stream = *std::move(stream);
  if (parallel.decode_roles) {
    const Status created =
        CreateMover(*weights.phased(), parallel, device.host_threads(), ledger, memory);
    if (!created) return created.error();
  }
  const Status created = CreateFrames(device, spec, options, shape, ledger, memory);
  if (!created) return created.error();
  return memory;
}

}  // namespace convene::runtime
