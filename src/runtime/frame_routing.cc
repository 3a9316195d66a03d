#include "runtime/frame_routing.h"

#include <algorithm>
#include <span>

namespace convene::runtime {
namespace {

std::vector<CapacityRow> CapacityRows(const device::StepRows& rows) {
  std::vector<CapacityRow> capacity_rows;
  for (int row = 0; row < rows.num_rows(); ++row) {
    // Running sequences that share nothing have different first blocks.
    const device::SequenceStep& sequence = rows.step()[rows.sequence(row)];
    capacity_rows.push_back({.sequence = sequence.blocks.front(),
                             .first = rows.position(row) == 0,
                             .counts = rows.position(row) < sequence.prompt_length});
  }
  return capacity_rows;
}

// One visit more of each row, behind the others: of the shared expert, whose number is `expert`.
void AddShared(int32_t expert, int top_k, device::Frame& frame) {
  const size_t num_rows = frame.shared_weights.size();
  const auto before = static_cast<size_t>(top_k);
  const size_t visits = before + 1;
  frame.experts.resize(num_rows * visits);
  frame.expert_weights.resize(num_rows * visits);
  for (size_t row = num_rows; row-- > 0;) {
    const auto move = [&](auto& values, auto last) {
      std::copy_backward(&values[row * before], &values[row * before] + before,
                         &values[row * visits] + before);
      values[row * visits + before] = last;
    };
    move(frame.experts, expert);
    move(frame.expert_weights, frame.shared_weights[row]);
  }
}

}  // namespace

FrameRouting::FrameRouting(const model::ModelSpec& spec, const TransformerOptions& options)
    : divides_shared_(options.parallel.roles.divides_shared()),
      num_decoder_layers_(spec.num_layers()),
      override_(options.parallel.experiment.router),
      capacity_(options.expert_capacity) {
  // Of all layers on each rank, whichever it has: what they count is added up.
  for (const model::LayerSpec& layer : options.parallel.WholeOf(spec).layers) {
    expert_counts_.emplace_back(layer.moe ? layer.moe->num_experts : 0);
  }
}

void FrameRouting::Change(const device::Layer& layer, device::Frame& frame) {
  const model::MoeSpec& moe = *layer.spec.moe;
  const auto top_k = static_cast<size_t>(moe.top_k);
  const bool is_overridden = override_.is_recorded() ? !layer.is_encoder : override_.is_set();
  for (int row = 0; is_overridden && row < frame.own().count; ++row) {
    // By the token and its place, as the router itself: no plan, batch or step changes the text.
    const int of_step = frame.row_of(row);
    const uint64_t key =
        TokenKey(layer.index, frame.rows.position(of_step), frame.rows.token(of_step));
    const std::span<int32_t> chosen = std::span(frame.experts).subspan(row * top_k, top_k);
    if (override_.is_recorded()) {
      ChooseByShares(override_.shares[layer.index], key, chosen);
    } else {
      OverrideExperts(override_, moe.num_experts, key, chosen);
    }
  }
  if (!capacity_.is_limited()) return;
  // Both stacks count for themselves.
  const int first = layer.is_encoder ? num_decoder_layers_ : 0;
  capacity_.Apply(first + layer.index, moe.num_experts, CapacityRows(frame.rows), frame.experts,
                  frame.expert_weights);
}

void FrameRouting::BeginExpertRows(const device::Layer& layer, device::Frame& frame) {
  if (!layer.is_encoder) {
    for (const int32_t expert : frame.experts) ++expert_counts_[layer.index][expert];
  }
  const model::MoeSpec& moe = *layer.spec.moe;
  frame.visits_shared = divides_shared_ && moe.shared_intermediate_size > 0;
  if (frame.visits_shared) AddShared(moe.num_experts, moe.top_k, frame);
  const int shared = frame.visits_shared ? 1 : 0;
  frame.expert_rows.Begin(layer.index, moe.num_experts + shared, moe.top_k + shared, frame.experts,
                          frame.expert_weights);
}

}  // namespace convene::runtime
