#include "strategy/role.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace convene::strategy {

namespace {

CacheParts Divide(int num_heads, const AttentionRole& role) {
  if (num_heads == 0) return {};
  if (role.parts <= num_heads) return {.heads = PartOf(num_heads, role.part, role.parts)};
  const int copies = role.parts / num_heads;
  return {.heads = {role.part / copies, 1}, .copies = copies};
}

}  // namespace

HeadParts AttentionRole::HeadsOf(const model::AttentionSpec& whole) const {
  if (whole.num_kv_heads == 0) return {};
  const Part kv = Divide(whole.num_kv_heads, *this).heads;
  if (parts > whole.num_kv_heads) return {.query = PartOf(whole.num_heads, part, parts), .kv = kv};
  const int queries_per_kv = whole.num_heads / whole.num_kv_heads;
  return {.query = {kv.first * queries_per_kv, kv.size * queries_per_kv}, .kv = kv};
}

CacheParts AttentionRole::CacheOf(const model::AttentionSpec& whole) const {
  return Divide(whole.latent ? 1 : whole.num_kv_heads, *this);
}

Part HeadRole::TokensOf(int vocab_size) const {
  const int num_panels = (vocab_size + kHeadPanelTokens - 1) / kHeadPanelTokens;
  const Part panels = PartOf(num_panels, part, parts);
  const int first = panels.first * kHeadPanelTokens;
  return {first, std::min(panels.size * kHeadPanelTokens, vocab_size - first)};
}

ExpertSplit::ExpertSplit(int num_shares, const std::vector<int>& weights) {
  CHECK(weights.empty() || std::ssize(weights) == num_shares, "{} weights of {} shares",
        weights.size(), num_shares);
  for (int i = 0; i < num_shares; ++i) {
    bounds_.push_back(bounds_.back() + (weights.empty() ? 1 : weights[i]));
  }
}

Part ExpertSplit::experts(int share, int num_experts) const {
  const auto begin = [&](int i) { return PartOf(num_experts, bounds_[i], bounds_.back()).first; };
  return {begin(share), begin(share + 1) - begin(share)};
}

int ExpertSplit::FewestExperts(int num_experts) const {
  int fewest = num_experts;
  for (int i = 0; i < num_shares(); ++i) fewest = std::min(fewest, experts(i, num_experts).size);
  return fewest;
}

int ExpertSplit::MostExperts(int num_experts) const {
  int most = 0;
  for (int i = 0; i < num_shares(); ++i) most = std::max(most, experts(i, num_experts).size);
  return most;
}

Roles::Roles(const Layout& layout)
    : layout_(layout),
      split_(layout.expert_ep, layout.expert_weights),
      roles_(static_cast<size_t>(layout.num_ranks())) {
  CHECK(layout.attention_ranks.empty() ||
            std::ssize(layout.attention_ranks) == layout.num_attention_ranks(),
        "{} ranks for {} with attention", layout.attention_ranks.size(),
        layout.num_attention_ranks());
  CHECK(!layout.divides_head || (are_whole() && layout.stages == 1),
        "only ranks with attention and experts divide the head");
  CHECK(!layout.divides_shared || (are_whole() && layout.stages == 1 && layout.expert_ep == 1),
        "shared experts are sliced where the others are");
  CHECK(!layout.divides_dense || layout.attention_tp > 1,
        "dense blocks are divided among the ranks that divide heads");
  if (layout.stages > 1) {
    DivideLayers();
    return;
  }
  for (int rank = 0; rank < num_ranks(); ++rank) {
    Role& role = roles_[rank];
    role.attention.reset();
    role.experts.reset();
    if (layout.attends(rank)) {
      const auto place = static_cast<int>(attention_ranks_.size());
      const int parts = attention_parts();
      role.attention = AttentionRole{place / parts, place % parts, parts};
      attention_ranks_.push_back(rank);
    }
    if (are_whole() || !layout.attends(rank)) {
      const auto place = static_cast<int>(expert_ranks_.size());
      const int slices = expert_slices();
      role.experts = ExpertRole{place / slices, place % slices, slices};
      expert_ranks_.push_back(rank);
    }
    if (layout.divides_head) {
      role.head = HeadRole{rank, num_ranks()};
    } else if (rank != 0) {
      role.head.reset();
    }
  }
}

void Roles::DivideLayers() {
  const std::vector<int>& weights = layout_.stage_weights;
  CHECK(layout_.num_attention_ranks() == 1 && layout_.num_expert_ranks() == 1 &&
            !layout_.disaggregates && (weights.empty() || std::ssize(weights) == layout_.stages),
        "a stage of {} is one rank", layout_.stages);
  const int sum =
      weights.empty() ? layout_.stages : std::accumulate(weights.begin(), weights.end(), 0);
  int first = 0;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const int end = first + (weights.empty() ? 1 : weights[static_cast<size_t>(rank)]);
    roles_[rank].stage = {.first = first, .end = end, .of = sum};
    if (rank != 0) roles_[rank].head.reset();
    first = end;
  }
  attention_ranks_ = {num_ranks() - 1};
  expert_ranks_ = {num_ranks() - 1};
}

Roles Roles::SeenFrom(int rank) const {
  Roles seen = *this;
  if (num_stages() == 1) return seen;
  for (int other = 0; other < num_ranks(); ++other) {
    if (other == rank) continue;
    seen.roles_[other].attention.reset();
    seen.roles_[other].experts.reset();
  }
  seen.attention_ranks_ = {rank};
  seen.expert_ranks_ = {rank};
  return seen;
}

Roles Roles::ExpandingFrom(int tokens) const {
  Roles roles = *this;
  for (Role& role : roles.roles_) {
    if (role.attention) role.attention->expand_from_tokens = tokens;
  }
  return roles;
}

std::vector<std::string> Roles::Names() const {
  std::vector<std::string> names;
  for (const Role& role : roles_) names.emplace_back(role.name());
  for (int rank = 0; num_stages() > 1 && rank < num_ranks(); ++rank) {
    names[rank] = fmt::format("stage {} of {}", rank + 1, num_stages());
  }
  return names;
}

Part Roles::ExpertsOf(int rank, int num_experts) const {
  const std::optional<ExpertRole>& experts = roles_[rank].experts;
  return experts ? split_.experts(experts->share, num_experts) : Part{};
}

}  // namespace convene::strategy
