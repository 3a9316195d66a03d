#include "strategy/work.h"

#include <optional>

namespace convene::strategy {

using schedule::Constant;
using schedule::Size;
using schedule::SizeKind;
using schedule::Work;

namespace {

// Rows of other ranks are told apart by so little: an expert's number and weight, and how many.
constexpr double kPairBytes = 6;

Size Of(SizeKind kind, int rank) { return {.kind = kind, .from = rank}; }

double NumMatrices(const model::ActivationSpec& activation) { return activation.gated() ? 3 : 2; }

double QkvElements(double hidden, const model::AttentionSpec& attention) {
  return hidden * (attention.query_dim() + attention.kv_dim() + attention.value_width());
}

double ProjectionElements(double hidden, const model::AttentionSpec& attention) {
  if (!attention.latent) {
    return QkvElements(hidden, attention) + hidden * attention.output_dim();
  }
  const model::LatentSpec& latent = *attention.latent;
  const double queries = latent.query_rank > 0
                             ? latent.query_rank * (hidden + attention.query_dim())
                             : hidden * attention.query_dim();
  return queries + hidden * latent.key_dim() +
         double(attention.num_heads) * latent.kv_rank * (latent.nope_dim + attention.value_dim) +
         hidden * attention.output_dim();
}

}  // namespace

double ExpertElements(const model::ModelSpec& spec, const model::MoeSpec& moe) {
  return NumMatrices(moe.activation) * double(spec.hidden_size) * moe.intermediate_size;
}

model::AttentionSpec LayerWork::PartOfRank(model::AttentionSpec attention, int rank) const {
  const std::optional<AttentionRole>& role = roles().of(rank).attention;
  const HeadParts heads = role ? role->HeadsOf(attention) : HeadParts();
  attention.num_heads = heads.query.size;
  attention.num_kv_heads = heads.kv.size;
  return attention;
}

double LayerWork::CachedElements(int rank) const {
  const model::AttentionSpec& attention = layer_.attention;
  const std::optional<AttentionRole>& role = roles().of(rank).attention;
  const double head_elements =
      attention.latent ? attention.latent->key_dim() : attention.head_dim + attention.value_dim;
  return role ? head_elements * role->CacheOf(attention).heads.size : 0;
}

Work LayerWork::Project(int rank) const {
  const double elements = QkvElements(hidden(), PartOfRank(layer_.attention, rank));
  return {.flops = {{2 * elements, Of(SizeKind::kTokens, rank)}},
          .memory_bytes = {{elements * options_.bytes.weights}}};
}

Work LayerWork::NormSums(int rank) const {
  return {.link_bytes = {{8.0 * (roles().attention_parts() - 1), Of(SizeKind::kTokens, rank)}}};
}

Work LayerWork::Attention(int rank, bool is_projected) const {
  const model::AttentionSpec attention = PartOfRank(layer_.attention, rank);
  const double projected = is_projected ? QkvElements(hidden(), attention) : 0;
  const double elements = ProjectionElements(hidden(), attention) - projected;
  const double score_flops = 2.0 * (attention.query_dim() + attention.output_dim());
  return {
      .flops = {{2 * elements, Of(SizeKind::kTokens, rank)},
                {score_flops, Of(SizeKind::kKeys, rank)}},
      .memory_bytes = {{elements * options_.bytes.weights},
                       {CachedElements(rank) * options_.bytes.kv, Of(SizeKind::kTokens, rank)}}};
}

Work LayerWork::CrossAttention(int rank) const {
  const model::AttentionSpec attention = PartOfRank(*layer_.cross_attention, rank);
  const double elements = hidden() * (attention.query_dim() + attention.output_dim());
  return {.flops = {{2 * elements, Of(SizeKind::kTokens, rank)}},
          .memory_bytes = {{elements * options_.bytes.weights}}};
}

Work LayerWork::PreAttention(int rank) const {
  const model::AttentionSpec& attention = layer_.attention;
  const double elements =
      ProjectionElements(hidden(), attention) - hidden() * attention.output_dim();
  return {.flops = {{2 * elements, Of(SizeKind::kTokens, rank)}},
          .memory_bytes = {{elements * options_.bytes.weights}}};
}

Work LayerWork::SendQkv(int rank) const {
  const model::AttentionSpec& attention = layer_.attention;
  const double elements = attention.query_dim() + CachedElements(rank);
  return {.link_bytes = {{elements * options_.bytes.activations, Of(SizeKind::kTokens, rank)}}};
}

Work LayerWork::Attend(int rank) const {
  const model::AttentionSpec& attention = layer_.attention;
  return {.flops = {{2.0 * (attention.query_dim() + attention.output_dim()),
                     Of(SizeKind::kKeys, rank)}},
          .memory_bytes = {{CachedElements(rank) * options_.bytes.kv, Of(SizeKind::kKeys, rank)}}};
}

Work LayerWork::SendHidden(int rank) const {
  return {.link_bytes = {{layer_.attention.output_dim() * options_.bytes.activations,
                          Of(SizeKind::kTokens, rank)}}};
}

Work LayerWork::PostAttention(int rank) const {
  const double elements = hidden() * layer_.attention.output_dim();
  return {.flops = {{2 * elements, Of(SizeKind::kTokens, rank)}},
          .memory_bytes = {{elements * options_.bytes.weights}}};
}

double LayerWork::StreamedBytes() const {
  const model::ActivationSpec& activation =
      layer_.moe ? layer_.moe->activation : layer_.dense_activation;
  const double intermediate = layer_.moe
                                  ? double(layer_.moe->num_experts) * layer_.moe->intermediate_size
                                  : layer_.dense_intermediate_size;
  return NumMatrices(activation) * hidden() * intermediate * options_.bytes.weights;
}

Work LayerWork::StagePage(int num_pages) const {
  // Read and written.
  return {.memory_bytes = Constant(2 * StreamedBytes() / num_pages)};
}

Work LayerWork::LoadPage(int num_pages) const {
  return {.link_bytes = Constant(StreamedBytes() / num_pages)};
}

Work LayerWork::ExchangeOfRows(int rank, double element_bytes) const {
  return {.link_bytes = {{hidden() * element_bytes * (roles().attention_parts() - 1),
                          Of(SizeKind::kRows, rank)}}};
}

Work LayerWork::Rows(int rank, double bytes_per_row) const {
  return {.memory_bytes = {{bytes_per_row, Of(SizeKind::kRows, rank)}}};
}

Work LayerWork::FeedForward(const model::ActivationSpec& activation, double intermediate,
                            int rank) const {
  const double elements = NumMatrices(activation) * hidden() * intermediate;
  return {.flops = {{2 * elements, Of(SizeKind::kRows, rank)}},
          .memory_bytes = {{elements * options_.bytes.weights}}};
}

Work LayerWork::Dense(int rank) const {
  return FeedForward(layer_.dense_activation, layer_.dense_intermediate_size, rank);
}

Work LayerWork::Shared(int rank) const {
  return FeedForward(layer_.moe->activation, layer_.moe->shared_intermediate_size, rank);
}

Work LayerWork::Route(int rank) const {
  const double elements = hidden() * layer_.moe->num_experts;
  return {.flops = {{2 * elements, Of(SizeKind::kRows, rank)}},
          .memory_bytes = {{4 * elements}, {hidden() * 8, Of(SizeKind::kRows, rank)}}};
}

double LayerWork::VisitsOf(int rank) const {
  const ExpertSplit& split = roles().expert_split();
  const std::optional<ExpertRole>& experts = roles().of(rank).experts;
  const double visits = layer_.moe->top_k;
  return experts ? split.PartOfAmount(experts->share, visits) : visits / split.num_shares();
}

Work LayerWork::Counts(int rank) const {
  if (!roles().of(rank).owns_rows()) return {};
  const int others = roles().num_expert_ranks() - roles().of(rank).has_experts();
  return {.link_bytes = Constant(double{kCountsBytes} * others * options_.pipeline.chunks)};
}

Work LayerWork::Dispatch(int rank, int chunk) const {
  Work work;
  if (!roles().of(rank).owns_rows()) return work;
  work.link_bytes.reserve(static_cast<size_t>(roles().num_expert_ranks()));
  for (int to = 0; to < roles().num_ranks(); ++to) {
    if (to == rank || !roles().of(to).has_experts()) continue;
    const double row_bytes = hidden() * options_.bytes.dispatched + 1 + VisitsOf(to) * kPairBytes;
    work.link_bytes.push_back({row_bytes, {SizeKind::kSent, layer_idx_, chunk, rank, to}});
  }
  return work;
}

Work LayerWork::Experts(int rank, int chunk) const {
  const model::MoeSpec& moe = *layer_.moe;
  const double elements = ExpertElements(spec_, moe) * slice();
  const Size slots{SizeKind::kSlots, layer_idx_, chunk, rank};
  const Size experts{SizeKind::kExperts, layer_idx_, chunk, rank};
  return {.flops = {{2 * elements, slots}},
          .memory_bytes = {{elements * options_.bytes.weights, experts},
                           {hidden() * (options_.bytes.activations + 4), slots}}};
}

Work LayerWork::Reduce(int rank, int chunk) const {
  Work work;
  work.memory_bytes.reserve(static_cast<size_t>(roles().num_ranks()));
  const double row_bytes = hidden() * (4 * VisitsOf(rank) + options_.bytes.returned);
  for (int to = 0; to < roles().num_ranks(); ++to) {
    if (to == rank || !roles().of(to).owns_rows()) continue;
    work.memory_bytes.push_back({row_bytes, {SizeKind::kReturned, layer_idx_, chunk, rank, to}});
  }
  return work;
}

Work LayerWork::Combine(int rank, int chunk) const {
  Work work;
  if (!roles().of(rank).has_experts()) return work;
  work.link_bytes.reserve(static_cast<size_t>(roles().num_ranks()));
  for (int to = 0; to < roles().num_ranks(); ++to) {
    if (to == rank || !roles().of(to).owns_rows()) continue;
    work.link_bytes.push_back(
        {hidden() * options_.bytes.returned, {SizeKind::kReturned, layer_idx_, chunk, rank, to}});
  }
  return work;
}

Work LayerWork::Finish(int rank) const { return Rows(rank, hidden() * 4 * (VisitsOf(rank) + 2)); }

}  // namespace convene::strategy
