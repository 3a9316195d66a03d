#include "device/expert_rows.h"

#include <fmt/format.h>

#include "base/check.h"
#include "strategy/expert_pipeline.h"

namespace convene::device {
namespace {

// By rank; this one's are empty.
struct RankMessages {
  explicit RankMessages(int num_peers)
      : send(static_cast<size_t>(num_peers) + 1), receive(static_cast<size_t>(num_peers) + 1) {}

  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
};

}  // namespace

int64_t ExpertRows::MemoryBytes(const Options& options) {
  const ExpertPlacement placement(options.rank, options.roles);
  const RowParts parts(options.pool);
  ExchangeMemory counted;
  const SentRows sent(options, placement, parts, counted);
  const ReceivedRows received(options, placement, parts, counted);
  return counted.used_bytes();
}

ExpertRows::ExpertRows(const Options& options, comm::Group* group, ExchangeMemory& memory)
    : options_(options),
      group_(group),
      parts_(options.pool),
      placement_(options.rank, options.roles),
      sent_(options_, placement_, parts_, memory),
      received_(options_, placement_, parts_, memory),
      work_(placement_, parts_) {
  const int num_ranks = options.roles.num_ranks();
  CHECK(num_ranks == 1 || (group != nullptr && group->size() == num_ranks), "{} ranks", num_ranks);
  Use(options.roles, options.pipeline);
}

void ExpertRows::Use(const strategy::Roles& roles, const strategy::Pipeline& pipeline,
                     int own_chunks) {
  // One rank's schedule has other chunks than the plan says.
  const strategy::Pipeline own{.chunks = own_chunks, .cut = strategy::ChunkCut::kExperts};
  placement_.Use(roles, placement_.num_peers() == 0 ? own : pipeline);
}

void ExpertRows::Begin(int layer, int num_experts, int top_k, std::span<const int32_t> experts,
                       std::span<const float> weights) {
  layer_ = layer;
  selected_chunk_ = -1;
  placement_.BeginLayer(num_experts);
  work_.Begin();
  received_.Begin();
  sent_.Begin({.top_k = top_k, .experts = experts, .weights = weights}, work_);
}

std::string ExpertRows::NameOf(const char* exchange, int chunk) const {
  if (num_chunks() == 1) return fmt::format("{} of layer {}", exchange, layer_);
  return fmt::format("{} {} of layer {}", exchange, chunk, layer_);
}

std::unique_ptr<comm::Exchange> ExpertRows::StartCounts() {
  RankMessages messages(placement_.num_peers());
  for (int peer = 0; peer < placement_.num_peers(); ++peer) {
    const int rank = placement_.RankOf(peer);
    const std::span<BlockCounts> counts = received_.BeginCounts(peer);
    if (placement_.SendsTo(peer)) messages.send[rank] = std::as_bytes(sent_.counts(peer));
    if (placement_.ReceivesFrom(peer)) messages.receive[rank] = std::as_writable_bytes(counts);
  }
  return group_->StartAllToAll(kDispatchQueue, messages.send, messages.receive,
                               NameOf("counts", 0));
}

std::unique_ptr<comm::Exchange> ExpertRows::StartDispatch(int chunk) {
  received_.PlaceBlocks();
  RankMessages messages(placement_.num_peers());
  for (int peer = 0; peer < placement_.num_peers(); ++peer) {
    const int rank = placement_.RankOf(peer);
    messages.send[rank] = sent_.block(peer, chunk);
    messages.receive[rank] = received_.block(peer, chunk);
  }
  return group_->StartAllToAll(kDispatchQueue, messages.send, messages.receive,
                               NameOf("dispatch", chunk));
}

std::unique_ptr<comm::Exchange> ExpertRows::StartCombine(int chunk) {
  RankMessages messages(placement_.num_peers());
  for (int peer = 0; peer < placement_.num_peers(); ++peer) {
    const int rank = placement_.RankOf(peer);
    // A rank without experts may get sums before all of its rows are on their way.
    if (placement_.ReceivesFrom(peer)) messages.send[rank] = received_.sums(peer, chunk);
    if (placement_.SendsTo(peer)) messages.receive[rank] = sent_.sums(peer, chunk);
  }
  return group_->StartAllToAll(kCombineQueue, messages.send, messages.receive,
                               NameOf("combine", chunk));
}

std::vector<int> ExpertRows::WantedExperts(int chunk) const {
  CHECK(chunk < num_chunks(), "chunk {} of {} brings no rows", chunk, num_chunks());
  const strategy::Part own = placement_.own();
  std::vector<bool> is_wanted(static_cast<size_t>(own.size));
  const auto want = [&](int expert) {
    const int local = expert - own.first;
    if (local >= 0 && local < own.size) is_wanted[local] = true;
  };
  for (const int32_t expert : sent_.routing().experts) want(expert);
  received_.ForEachWanted(chunk, want);
  std::vector<int> experts;
  for (int local = 0; local < own.size; ++local) {
    if (is_wanted[local]) experts.push_back(own.first + local);
  }
  return experts;
}

const ChunkSlots& ExpertRows::Select(int chunk) {
  if (chunk == selected_chunk_) return selected();
  selected_chunk_ = chunk;
  auto first = static_cast<int32_t>(work_.pairs.size());
  const bool comes_in = chunk < num_chunks() && placement_.num_peers() > 0;
  if (comes_in) received_.Read(chunk, work_);
  auto end = static_cast<int32_t>(work_.pairs.size());
  if (placement_.by_experts()) {
    // What is here for this group.
    work_.GroupListed(chunk, FewestSlots());
    return selected();
  }
  if (num_chunks() == 1) {
    first = 0;
  } else if (!comes_in) {
    const int part = chunk - strategy::OwnChunk(placement_.pipeline(), 0);
    const strategy::Part rows = strategy::PartOf(work_.num_own_rows, part, 2);
    const auto pair_of = [&](int row) {
      return row < work_.num_own_rows ? work_.rows[row].first_pair : work_.num_own_pairs;
    };
    first = pair_of(rows.first);
    end = pair_of(rows.first + rows.size);
  }
  work_.GroupRange(first, end, FewestSlots());
  return selected();
}

int ExpertRows::FewestSlots() const {
  if (options_.capacity_factor <= 0 || num_local_experts() == 0) return 0;
  return sent_.Capacity() + received_.PaddedRows();
}

int64_t ExpertRows::sent_rows(int rank, int chunk) const {
  return rank == options_.rank ? 0 : sent_.counts(placement_.PeerOf(rank))[chunk].rows;
}

int64_t ExpertRows::returned_rows(int rank, int chunk) const {
  return rank == options_.rank ? 0 : received_.num_sums(placement_.PeerOf(rank), chunk);
}

}  // namespace convene::device
