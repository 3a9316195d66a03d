#include "runtime/step_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"
#include "runtime/step_memory.h"
#include "strategy/layer_pipeline.h"

namespace convene::runtime {

using schedule::Block;
using schedule::Task;

namespace {

// For errors of exchanges.
std::string NameOf(const char* exchange, const Task& task) {
  const char* stack = task.encoder ? "encoder" : "decoder";
  if (task.layer < 0) return fmt::format("{} of the {}", exchange, stack);
  return fmt::format("{} of {} layer {}", exchange, stack, task.layer);
}

// They keep references to the specs. The encoder's layers use the first decoder layer's part of the
// cache, which gets the decoder's keys and values only afterwards.
std::vector<device::Layer> LayersOf(const std::vector<model::LayerSpec>& specs, bool is_encoder) {
  std::vector<device::Layer> layers;
  for (const model::LayerSpec& spec : specs) {
    const auto index = static_cast<int>(layers.size());
    layers.push_back({.spec = spec,
                      .index = index,
                      .is_encoder = is_encoder,
                      .cache_layer = is_encoder ? 0 : index});
  }
  return layers;
}

}  // namespace

const StepOperators::Operator& StepOperators::OperatorOf(schedule::TaskKind kind) {
  static const auto operators = [] {
    using enum schedule::TaskKind;
    std::array<Operator, schedule::kNumTaskKinds> table;
    const auto at = [&](schedule::TaskKind of) -> Operator& {
      return table[static_cast<size_t>(of)];
    };
    at(kEmbed).run = &StepOperators::Embed;
    at(kNormalize) = {.run = &StepOperators::Normalize, .skip = &StepOperators::SkipToWanted};
    at(kGatherNormed).start = &StepOperators::GatherNormed;
    at(kProject).run = &StepOperators::Project;
    at(kNormSums).start = &StepOperators::NormSums;
    at(kAttention) = {.run = &StepOperators::Attend, .skip = &StepOperators::SkipToWanted};
    at(kPreAttention).run = &StepOperators::BeginAttention;
    at(kAttend).run = &StepOperators::AttendPart;
    at(kPostAttention) = {.run = &StepOperators::EndAttention,
                          .skip = &StepOperators::SkipToWanted};
    at(kScatterSums).start = &StepOperators::ScatterSums;
    at(kAddPartials) = {.run = &StepOperators::AddPartials, .skip = &StepOperators::SkipToWanted};
    at(kDense).run = &StepOperators::Dense;
    at(kRoute) = {.run = &StepOperators::Route, .skip = &StepOperators::SkipRoute};
    at(kCounts).start = &StepOperators::Counts;
    at(kDispatch).start = &StepOperators::Dispatch;
    at(kShared).run = &StepOperators::Shared;
    at(kExperts) = {.run = &StepOperators::Experts, .skip = &StepOperators::SkipExperts};
    at(kReduce) = {.run = &StepOperators::Reduce, .skip = &StepOperators::SkipReduce};
    at(kCombine).start = &StepOperators::Combine;
    at(kFinish).run = &StepOperators::Finish;
    at(kPassRows).start = &StepOperators::PassRows;
    at(kGatherRows).start = &StepOperators::GatherRows;
    at(kHead).run = &StepOperators::RunHead;
    at(kGatherLogits).start = &StepOperators::GatherLogits;
    at(kJoinLogits).run = &StepOperators::JoinLogits;
    at(kCrossStore).run = &StepOperators::CrossStore;
    at(kMoveExperts).start = &StepOperators::MoveExperts;
    return table;
  }();
  return operators[static_cast<size_t>(kind)];
}

StepOperators::StepOperators(weights::WeightStore& weights, device::Device& device,
                             const TransformerOptions& options, const RankMemory& memory,
                             StepFault& fault)
    : weights_(weights),
      options_(options),
      rank_(options.parallel.rank()),
      memory_(memory),
      fault_(fault),
      decoder_(LayersOf(spec().layers, /*is_encoder=*/false)),
      encoder_(LayersOf(spec().encoder_layers, /*is_encoder=*/true)),
      row_exchange_(options.parallel.roles, rank_, WireRowsOf(spec(), options),
                    options.parallel.group),
      head_(row_exchange_, options.parallel.roles, rank_),
      routing_(spec(), options),
      reads_(weights.paged()),
      fence_(device.CreateEvent()) {}

bool StepOperators::MayKeepRouting(const strategy::Pipeline& pipeline) const {
  return stream().KeepsRouting() && options_.parallel.roles.num_ranks() == 1 &&
         pipeline.chunks == 1 && weights_.paged() == nullptr && !routing_.changes();
}

void StepOperators::Begin(const Step& step, std::span<const device::SequenceStep> sequences,
                          const std::optional<strategy::Paging>& paging) {
  step_ = step;
  reads_.Begin(paging, std::max(decoder_.size(), encoder_.size()));
  if (options_.parallel.roles.of(rank_).has_head()) head_.Begin(sequences, step.frames);
}

const StepOperators::Operator& StepOperators::ComputationOf(const Task& task) {
  const Operator& work = OperatorOf(task.kind);
  CHECK(work.run != nullptr, "no computation: {}", schedule::Name(task.kind));
  return work;
}

Status StepOperators::Run(const Task& task) {
  return (this->*ComputationOf(task).run)(task, memory_.FrameOf(task));
}

void StepOperators::Skip(const Task& task) {
  const Operator& work = ComputationOf(task);
  if (work.skip != nullptr) (this->*work.skip)(task, memory_.FrameOf(task));
}

std::unique_ptr<comm::Exchange> StepOperators::Start(const Task& task) {
  const Operator& work = OperatorOf(task.kind);
  CHECK(work.start != nullptr, "no exchange: {}", schedule::Name(task.kind));
  return (this->*work.start)(task, memory_.FrameOf(task));
}

Status StepOperators::RunOnLane(const Task& task) {
  using enum schedule::TaskKind;
  if (task.kind == kReadKv) return memory_.spilled->Read(task.layer, task.chunk);
  if (task.kind == kWriteKv) return memory_.spilled->Write(task.layer, task.chunk);
  if (task.kind == kLoadExperts) {
    // Whatever has failed here: other ranks divide them so, too.
    memory_.backup->Load(task.layer, step_.moves_to);
  } else {
    reads_.Read(task, stack(task.encoder), fault_.has_failed() ? nullptr : &memory_.FrameOf(task));
  }
  return {};
}

void StepOperators::AwaitStream() {
  stream().Record(*fence_);
  fence_->Wait();
}

bool StepOperators::OnlyWanted(const Task& task) const {
  return !task.encoder && task.layer + 1 == std::ssize(decoder_) && options_.prunes();
}

Status StepOperators::Embed(const Task& task, Frame& frame) {
  return stream().Embed(task.encoder, frame);
}

Status StepOperators::Normalize(const Task& task, Frame& frame) {
  if (task.layer >= 0) {
    if (task.block == Block::kDense) {
      stream().NormalizeDense(LayerOf(task), frame);
    } else {
      stream().Normalize(LayerOf(task), task.block == Block::kCross, frame);
    }
    return {};
  }
  if (!task.encoder && !options_.prunes()) KeepWanted(frame);
  stream().NormalizeFinal(task.encoder, frame);
  return {};
}

void StepOperators::KeepWanted(Frame& frame) {
  frame.DivideWanted();
  stream().KeepWanted(frame);
}

Status StepOperators::Project(const Task& task, Frame& frame) {
  return stream().Project(LayerOf(task), frame);
}

Status StepOperators::Attend(const Task& task, Frame& frame) {
  const bool only_wanted = OnlyWanted(task);
  const bool is_cross = task.block == Block::kCross;
  const Status attended =
      stream().Attend(LayerOf(task), {.cross = is_cross, .only_wanted = only_wanted}, frame);
  if (attended && only_wanted && !is_cross) frame.DivideWanted();
  return attended;
}

Status StepOperators::BeginAttention(const Task& task, Frame& frame) {
  return stream().BeginAttention(LayerOf(task), frame);
}

Status StepOperators::AttendPart(const Task& task, Frame& frame) {
  const Status attended = stream().AttendSequences(
      LayerOf(task), memory_.spilled->PartAt(task.chunk), OnlyWanted(task), frame);
  // The load lane goes on with its buffer.
  AwaitStream();
  return attended;
}

Status StepOperators::EndAttention(const Task& task, Frame& frame) {
  const bool only_wanted = OnlyWanted(task);
  const Status ended = stream().EndAttention(LayerOf(task), only_wanted, frame);
  if (ended && only_wanted) frame.DivideWanted();
  return ended;
}

Status StepOperators::AddPartials(const Task& task, Frame& frame) {
  if (OnlyWanted(task) && task.block == Block::kAttention) KeepWanted(frame);
  stream().AddPartials(frame);
  return {};
}

Status StepOperators::Dense(const Task& task, Frame& frame) {
  return stream().Dense(LayerOf(task), frame);
}

Status StepOperators::Route(const Task& task, Frame& frame) {
  const Layer& layer = LayerOf(task);
  if (step_.keeps_routing) return stream().RouteHere(layer, frame);
  const Layer* const next = reads_.ToPredict(stack(layer.is_encoder), layer.index);
  if (next != nullptr) {
    if (Status predicted = stream().Predict(*next, frame); !predicted) return predicted;
  }
  if (Status routed = stream().Route(layer, frame); !routed) return routed;
  AwaitStream();
  stream().FetchRouting(frame);
  routing_.Change(layer, frame);
  reads_.Chose(layer, next, frame);
  routing_.BeginExpertRows(layer, frame);
  stream().PackDispatch(frame);
  return {};
}

Status StepOperators::Shared(const Task& task, Frame& frame) {
  return stream().Shared(LayerOf(task), frame);
}

Status StepOperators::Experts(const Task& task, Frame& frame) {
  if (!step_.keeps_routing) frame.expert_rows.Select(task.chunk);
  const Status done = stream().Experts(LayerOf(task), frame);
  if (done) reads_.Release(task);
  return done;
}

Status StepOperators::Reduce(const Task& task, Frame& frame) {
  stream().Reduce(frame.expert_rows.Returns(task.chunk), frame);
  return {};
}

Status StepOperators::Finish(const Task& task, Frame& frame) {
  stream().Finish(LayerOf(task), frame);
  return {};
}

Status StepOperators::RunHead(const Task& task, Frame&) {
  // Nobody is to see rows that are worth nothing.
  if (fault_.AnyHasFailed()) return {};
  if (options_.parallel.roles.divides_head()) {
    return head_.RunPart(task.chunk, step_.frames, spec().vocab_size, step_.largest_suffices,
                         stream(), *fence_);
  }
  Status done = head_.Run(step_.frames, spec().vocab_size, stream(), *fence_, *step_.logits_sink);
  reads_.EndStep();
  return done;
}

Status StepOperators::JoinLogits(const Task& task, Frame&) {
  if (fault_.AnyHasFailed()) return {};
  head_.Join(task.chunk, *step_.frames.front(), spec().vocab_size, step_.largest_suffices, stream(),
             *step_.logits_sink);
  reads_.EndStep();
  return {};
}

Status StepOperators::CrossStore(const Task&, Frame& frame) {
  for (const Layer& layer : decoder_) {
    if (Status stored = stream().StoreCross(layer, frame); !stored) return stored;
  }
  if (step_.states_sink != nullptr && *step_.states_sink && !fault_.AnyHasFailed()) {
    AwaitStream();
    head_.PassStates(step_.frames, spec().hidden_size, *step_.states_sink);
  }
  return {};
}

void StepOperators::SkipToWanted(const Task& task, Frame& frame) {
  const bool is_final_norm = task.layer < 0 && !task.encoder;
  const bool keeps_wanted = is_final_norm ? !options_.prunes()
                                          : task.kind != schedule::TaskKind::kNormalize &&
                                                OnlyWanted(task) && task.block == Block::kAttention;
  if (keeps_wanted) frame.DivideWanted();
}

void StepOperators::SkipRoute(const Task& task, Frame& frame) {
  frame.experts.clear();
  frame.expert_weights.clear();
  frame.shared_weights.clear();
  routing_.BeginExpertRows(LayerOf(task), frame);
}

void StepOperators::SkipExperts(const Task& task, Frame& frame) {
  frame.expert_rows.Select(task.chunk);
  reads_.Release(task);
}

void StepOperators::SkipReduce(const Task& task, Frame& frame) {
  frame.expert_rows.Returns(task.chunk);
}

std::unique_ptr<comm::Exchange> StepOperators::Counts(const Task& task, Frame& frame) {
  // Without rows of its own to route, a rank begins the layer here.
  if (!options_.parallel.roles.of(rank_).owns_rows()) SkipRoute(task, frame);
  return frame.expert_rows.StartCounts();
}

std::unique_ptr<comm::Exchange> StepOperators::Dispatch(const Task& task, Frame& frame) {
  return frame.expert_rows.StartDispatch(task.chunk);
}

std::unique_ptr<comm::Exchange> StepOperators::Combine(const Task& task, Frame& frame) {
  return frame.expert_rows.StartCombine(task.chunk);
}

std::unique_ptr<comm::Exchange> StepOperators::GatherNormed(const Task& task, Frame& frame) {
  return row_exchange_.StartGatherNormed(frame, NameOf("gathering normed rows", task));
}

std::unique_ptr<comm::Exchange> StepOperators::NormSums(const Task& task, Frame& frame) {
  return row_exchange_.StartNormSums(frame, NameOf("sums of squares", task));
}

std::unique_ptr<comm::Exchange> StepOperators::ScatterSums(const Task& task, Frame& frame) {
  return row_exchange_.StartScatterSums(frame, NameOf("partial sums", task));
}

std::unique_ptr<comm::Exchange> StepOperators::PassRows(const Task& task, Frame& frame) {
  const bool sends = task.lane.kind == strategy::LaneBehind(rank_);
  return row_exchange_.StartPassRows(frame, sends ? rank_ : rank_ - 1,
                                     NameOf("passing rows", task));
}

std::unique_ptr<comm::Exchange> StepOperators::GatherRows(const Task& task, Frame& frame) {
  using enum device::TravellingRows;
  return row_exchange_.StartGatherRows(frame, task.encoder ? kStates : kNormed, fault_.Tell());
}

std::unique_ptr<comm::Exchange> StepOperators::GatherLogits(const Task& task, Frame&) {
  return head_.StartGather(task.chunk, *step_.frames.front(), spec().vocab_size,
                           step_.largest_suffices, fault_.Tell());
}

std::unique_ptr<comm::Exchange> StepOperators::MoveExperts(const Task& task, Frame&) {
  return memory_.mover->Start(task.layer, step_.moves_to);
}

}  // namespace convene::runtime
