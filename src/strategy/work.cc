#include "strategy/work.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "strategy/kv_block_tokens.h"

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

// Passes over a row beside products: the norm before them, sums in float, the format that the next
// product reads, and what it adds to the residual stream.
double PassBytes(double in, double made, double out) { return 10 * in + 10 * made + 8 * out; }

double LatentQueryElements(double hidden, const model::AttentionSpec& attention) {
  const double rank = attention.latent->query_rank;
  return rank > 0 ? rank * (hidden + attention.query_dim()) : hidden * attention.query_dim();
}

// Makes keys and values of all heads of a latent.
double ExpansionElements(const model::AttentionSpec& attention) {
  return double(attention.num_heads) * attention.latent->kv_rank *
         (attention.latent->nope_dim + attention.value_dim);
}

double ProjectionElements(double hidden, const model::AttentionSpec& attention) {
  if (!attention.latent) {
    return QkvElements(hidden, attention) + hidden * attention.output_dim();
  }
  return LatentQueryElements(hidden, attention) + hidden * attention.latent->key_dim() +
         ExpansionElements(attention) + hidden * attention.output_dim();
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

Size LayerWork::RowsOf(int rank) const {
  return Of(prunes_ ? SizeKind::kWanted : SizeKind::kRows, rank);
}

Size LayerWork::Attended(SizeKind kind, int rank) const {
  Size size = Of(kind, rank);
  size.wanted = prunes_;
  const bool is_limited = layer_.attention.window > 0 && !layer_.attention.latent;
  if (is_limited && (kind == SizeKind::kKeys || kind == SizeKind::kCached)) size.layer = layer_idx_;
  return size;
}

Work LayerWork::Attention(int rank, bool is_projected) const {
  if (layer_.attention.latent) return LatentAttention(rank);
  const model::AttentionSpec attention = PartOfRank(layer_.attention, rank);
  const double made = attention.query_dim() + attention.kv_dim() + double(attention.value_width());
  const double in = is_projected ? 0 : QkvElements(hidden(), attention);
  const double out = hidden() * attention.output_dim();
  const double cached = CachedElements(rank) * options_.bytes.kv;
  return {
      .flops = {{2 * in, Of(SizeKind::kTokens, rank)},
                {2 * out, Attended(SizeKind::kTokens, rank)},
                {2.0 * (attention.query_dim() + attention.output_dim()),
                 Attended(SizeKind::kKeys, rank)}},
      .memory_bytes = {
          {(in + out) * options_.bytes.weights},
          {cached + PassBytes(is_projected ? 0 : hidden(), made, 0), Of(SizeKind::kTokens, rank)},
          {PassBytes(0, attention.output_dim(), hidden()), Attended(SizeKind::kTokens, rank)},
          {cached, Attended(SizeKind::kCached, rank)}}};
}

// Of tokens in the expanded form keys and values of all heads are made from what is cached; others
// have those products applied to their queries and outputs instead (absorbed).
Work LayerWork::LatentAttention(int rank) const {
  const model::AttentionSpec attention = PartOfRank(layer_.attention, rank);
  const model::LatentSpec& latent = *attention.latent;
  const double in = LatentQueryElements(hidden(), attention) + hidden() * latent.key_dim();
  const double expansion = ExpansionElements(attention);
  const double out = hidden() * attention.output_dim();
  const double cached = CachedElements(rank) * options_.bytes.kv;
  const double heads = attention.num_heads;
  const double absorbed_score = 2 * heads * (latent.key_dim() + latent.kv_rank);
  const double expanded_score = 2.0 * (attention.query_dim() + attention.output_dim());
  const double expanded = heads * (attention.head_dim + attention.value_dim);
  const auto attended = [&](SizeKind kind) { return Attended(kind, rank); };
  return {.flops = {{2 * in, Of(SizeKind::kTokens, rank)},
                    {2 * (expansion + out), attended(SizeKind::kTokens)},
                    {-2 * expansion, attended(SizeKind::kExpandedTokens)},
                    {2 * expansion, attended(SizeKind::kExpandedCached)},
                    {absorbed_score, attended(SizeKind::kKeys)},
                    {expanded_score - absorbed_score, attended(SizeKind::kExpandedKeys)}},
          .memory_bytes = {
              {(in + expansion + out) * options_.bytes.weights},
              {cached + PassBytes(hidden(), attention.query_dim() + latent.key_dim(), 0),
               Of(SizeKind::kTokens, rank)},
              {PassBytes(0, attention.output_dim(), hidden()), attended(SizeKind::kTokens)},
              {cached, attended(SizeKind::kCached)},
              {expanded * (8 + options_.bytes.activations), attended(SizeKind::kExpandedCached)}}};
}

Work LayerWork::CrossAttention(int rank) const {
  const model::AttentionSpec attention = PartOfRank(*layer_.cross_attention, rank);
  const double elements = hidden() * (attention.query_dim() + attention.output_dim());
  const double cached = double(attention.num_kv_heads) * (attention.head_dim + attention.value_dim);
  return {.flops = {{2 * elements, Attended(SizeKind::kTokens, rank)},
                    {2.0 * (attention.query_dim() + attention.output_dim()),
                     Attended(SizeKind::kInputKeys, rank)}},
          .memory_bytes = {
              {elements * options_.bytes.weights},
              {PassBytes(hidden(), attention.query_dim() + attention.output_dim(), hidden()),
               Attended(SizeKind::kTokens, rank)},
              {cached * options_.bytes.kv, Attended(SizeKind::kInputCached, rank)}}};
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
  return {.flops = {{2 * elements, Attended(SizeKind::kTokens, rank)}},
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

Work LayerWork::LoadKv(int rank) const { return {.link_bytes = Attend(rank).memory_bytes}; }

Work LayerWork::StoreKv(int rank) const {
  return {.link_bytes = {{CachedElements(rank) * options_.bytes.kv, Of(SizeKind::kTokens, rank)}}};
}

Work LayerWork::ReadPages(int rank) const {
  const Paging& paging = *options_.paging;
  const double expert_bytes = ExpertElements(spec_, *layer_.moe) * slice() * options_.bytes.weights;
  const int num_experts = roles().ExpertsOf(rank, layer_.moe->num_experts).size;
  return {.disk_bytes = Constant(expert_bytes * num_experts * paging.missing / paging.chunks)};
}

Work LayerWork::ReadChosen(int rank, int chunk) const {
  const double expert_bytes = ExpertElements(spec_, *layer_.moe) * slice() * options_.bytes.weights;
  return {.disk_bytes = {{expert_bytes * options_.paging->missing,
                          {SizeKind::kExperts, layer_idx_, chunk, rank}}}};
}

Work LayerWork::BeforeParts(int rank) const {
  const model::AttentionSpec& attention = layer_.attention;
  const double made = attention.query_dim() + attention.kv_dim() + double(attention.value_width());
  Work work = PreAttention(rank);
  work.memory_bytes.push_back({PassBytes(hidden(), made, 0), Of(SizeKind::kTokens, rank)});
  return work;
}

Work LayerWork::BehindParts(int rank) const {
  Work work = PostAttention(rank);
  work.memory_bytes.push_back(
      {PassBytes(0, layer_.attention.output_dim(), hidden()), Attended(SizeKind::kTokens, rank)});
  return work;
}

Work LayerWork::AttendPart(int rank) const {
  const double share = 1.0 / options_.spilled_kv->parts;
  const model::AttentionSpec& attention = layer_.attention;
  const double cached = CachedElements(rank) * options_.bytes.kv * share;
  return {.flops = {{2.0 * (attention.query_dim() + attention.output_dim()) * share,
                     Attended(SizeKind::kKeys, rank)}},
          .memory_bytes = {{cached, Of(SizeKind::kTokens, rank)},
                           {cached, Attended(SizeKind::kCached, rank)}}};
}

// Blocks are read and written whole. A sequence whose logits are wanted is counted for one that
// ends in the middle of a block, so that half of that is read in vain, and all of it is written
// again. Of the block in which a window begins what the queries see is counted alone: whether
// windows begin within the sequences, amounts of work cannot tell.
Work LayerWork::ReadKv(int rank) const {
  const SpilledKv& spilled = *options_.spilled_kv;
  const double cached = CachedElements(rank) * options_.bytes.kv * spilled.missing / spilled.parts;
  // Also where few rows go on behind attention, those of all tokens are read.
  Size seen = Attended(SizeKind::kCached, rank);
  seen.wanted = false;
  // Those of the step's own tokens are made here.
  return {.disk_bytes = {{cached, seen},
                         {-cached, Of(SizeKind::kTokens, rank)},
                         {cached * kKvBlockTokens / 2, Of(SizeKind::kWanted, rank)}}};
}

Work LayerWork::WriteKv(int rank) const {
  const SpilledKv& spilled = *options_.spilled_kv;
  const double cached = CachedElements(rank) * options_.bytes.kv * spilled.missing / spilled.parts;
  return {.disk_bytes = {{cached, Of(SizeKind::kTokens, rank)},
                         {cached * (kKvBlockTokens - 1), Of(SizeKind::kWanted, rank)}}};
}

Work LayerWork::GatherNormed(int rank, double element_bytes, bool is_behind) const {
  return {.link_bytes = {{hidden() * element_bytes * (roles().attention_parts() - 1),
                          is_behind ? RowsOf(rank) : Of(SizeKind::kRows, rank)}}};
}

// A rank has partial sums of all tokens of its group, and keeps those of its own rows.
Work LayerWork::ScatterSums(int rank, double element_bytes) const {
  return {.link_bytes = {{hidden() * element_bytes, Attended(SizeKind::kTokens, rank)},
                         {-hidden() * element_bytes, RowsOf(rank)}}};
}

Work LayerWork::RowsBefore(int rank, double bytes_per_row) const {
  return {.memory_bytes = {{bytes_per_row, Of(SizeKind::kRows, rank)}}};
}

Work LayerWork::Rows(int rank, double bytes_per_row) const {
  return {.memory_bytes = {{bytes_per_row, RowsOf(rank)}}};
}

Work LayerWork::Dense(int rank) const {
  if (!roles().divides_dense()) {
    return FeedForward(layer_.dense_activation, layer_.dense_intermediate_size, {rank});
  }
  std::vector<int> group;
  for (int of = 0; of < roles().num_ranks(); ++of) {
    const std::optional<AttentionRole>& attention = roles().of(of).attention;
    if (attention && attention->group == roles().of(rank).attention->group) group.push_back(of);
  }
  return FeedForward(layer_.dense_activation,
                     layer_.dense_intermediate_size / double(roles().attention_parts()), group);
}

Work LayerWork::FeedForward(const model::ActivationSpec& activation, double intermediate,
                            const std::vector<int>& rows_of) const {
  const double elements = NumMatrices(activation) * hidden() * intermediate;
  Work work{.memory_bytes = {{elements * options_.bytes.weights}}};
  for (const int rank : rows_of) {
    work.flops.push_back({2 * elements, RowsOf(rank)});
    work.memory_bytes.push_back({PassBytes(hidden(), intermediate, hidden()), RowsOf(rank)});
  }
  return work;
}

Work LayerWork::Shared(int rank) const {
  const model::MoeSpec& moe = *layer_.moe;
  if (!roles().divides_shared()) {
    return FeedForward(moe.activation, moe.shared_intermediate_size, {rank});
  }
  std::vector<int> all(static_cast<size_t>(roles().num_ranks()));
  std::iota(all.begin(), all.end(), 0);
  return FeedForward(moe.activation, moe.shared_intermediate_size * slice(), all);
}

Work LayerWork::Route(int rank) const {
  const double elements = hidden() * layer_.moe->num_experts;
  return {
      .flops = {{2 * elements, RowsOf(rank)}},
      .memory_bytes = {{4 * elements},
                       {PassBytes(hidden(), layer_.moe->num_experts, 0) +
                            hidden() * (options_.bytes.activations + options_.bytes.dispatched) *
                                PeersOfRow(rank),
                        RowsOf(rank)}}};
}

double LayerWork::VisitsOf(int rank) const {
  const ExpertSplit& split = roles().expert_split();
  const std::optional<ExpertRole>& experts = roles().of(rank).experts;
  const double visits = layer_.moe->top_k;
  return experts ? split.PartOfAmount(experts->share, visits) : visits / split.num_shares();
}

double LayerWork::PeersOfRow(int rank) const {
  double peers = 0;
  for (int to = 0; to < roles().num_ranks(); ++to) {
    if (to != rank && roles().of(to).has_experts()) peers += std::min(1.0, VisitsOf(to));
  }
  return peers;
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
    const double pairs = VisitsOf(to) + (roles().divides_shared() && HasShared() ? 1 : 0);
    const double row_bytes = hidden() * options_.bytes.dispatched + 1 + pairs * kPairBytes;
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
                           {PassBytes(hidden(), moe.intermediate_size * slice(), 0), slots}}};
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
