#include "runtime/expert_mover.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "device/expert_rows.h"
#include "weights/share.h"

namespace convene::runtime {
namespace {

using strategy::Phase;
using weights::ExpertPart;
using weights::ExpertPiece;
using weights::FfnWeights;

// Pieces have a multiple of these columns: whole groups of int4, whole lines of a panel.
constexpr int kPieceColumns = 128;

int64_t BytesOf(const model::ModelSpec& whole, const model::MoeSpec& moe,
                const weights::WeightFormats& formats, int columns) {
  return static_cast<int64_t>(
      weights::SizeBytes(weights::FfnOf(formats, moe.activation, whole.hidden_size, columns)));
}

// Whatever PartsOf and BytesOf look at.
bool AreCutAlike(const model::MoeSpec& a, const model::MoeSpec& b) {
  return a.num_experts == b.num_experts && a.intermediate_size == b.intermediate_size &&
         a.activation.kind == b.activation.kind;
}

}  // namespace

std::vector<ExpertPart> ExpertMover::PartsOf(const model::MoeSpec& moe,
                                             const weights::WeightFormats& formats,
                                             const strategy::Roles& roles) {
  std::vector<ExpertPart> parts;
  for (int rank = 0; rank < roles.num_ranks(); ++rank) {
    parts.push_back(weights::ExpertPartOf(moe, weights::ShareOf(roles, rank), formats));
  }
  return parts;
}

ExpertMover::Cut ExpertMover::CutOf(const model::ModelSpec& whole, const model::MoeSpec& moe,
                                    const weights::WeightFormats& formats, const Phases& phases) {
  const std::vector<ExpertPart> prefill = PartsOf(moe, formats, phases.prefill);
  const std::vector<ExpertPart> decode = PartsOf(moe, formats, phases.decode);
  Cut cut;
  int64_t most_columns = 0;  // of one expert that go from a rank to another
  int64_t most_experts = 0;
  const auto for_each_pair = [&](const auto& f) {
    for (size_t from = 0; from < prefill.size(); ++from) {
      for (size_t to = 0; to < decode.size(); ++to) {
        if (from != to) f(prefill[from], decode[to]);
      }
    }
  };
  for_each_pair([&](const ExpertPart& from, const ExpertPart& to) {
    const auto pieces = weights::PiecesOf(from, to, moe.intermediate_size);
    most_experts = std::max<int64_t>(most_experts, std::ssize(pieces));
    for (const ExpertPiece& piece : pieces) {
      most_columns = std::max<int64_t>(most_columns, piece.slice.size);
    }
  });
  if (most_columns == 0) return cut;
  const auto num_peers = static_cast<int64_t>(prefill.size()) - 1;
  const int64_t pair_bytes = phases.most_round_bytes / num_peers;
  const auto columns = [&](int64_t blocks) {
    return static_cast<int>(std::min<int64_t>(most_columns, blocks * kPieceColumns));
  };
  int64_t blocks = (most_columns + kPieceColumns - 1) / kPieceColumns;
  while (blocks > 1 && BytesOf(whole, moe, formats, columns(blocks)) > pair_bytes) --blocks;
  cut.columns = columns(blocks);
  cut.piece_bytes = BytesOf(whole, moe, formats, cut.columns);
  int64_t most_pieces = 0;
  for_each_pair([&](const ExpertPart& from, const ExpertPart& to) {
    most_pieces =
        std::max<int64_t>(most_pieces, std::ssize(weights::PiecesOf(from, to, cut.columns)));
  });
  cut.pieces_per_round =
      static_cast<int>(std::clamp<int64_t>(pair_bytes / cut.piece_bytes, 1, most_pieces));
  cut.num_rounds =
      static_cast<int>((most_pieces + cut.pieces_per_round - 1) / cut.pieces_per_round);
  return cut;
}

uint64_t ExpertMover::StagingBytes(const model::ModelSpec& whole,
                                   const weights::WeightFormats& formats, const Phases& phases) {
  int64_t most = 0;
  const model::MoeSpec* before = nullptr;
  for (const model::LayerSpec& layer : whole.layers) {
    if (!layer.moe || (before != nullptr && AreCutAlike(*layer.moe, *before))) continue;
    before = &*layer.moe;
    const Cut cut = CutOf(whole, *layer.moe, formats, phases);
    if (cut.num_rounds > 0) most = std::max(most, cut.pieces_per_round * cut.piece_bytes);
  }
  // To and from each other rank.
  return static_cast<uint64_t>(2 * (phases.prefill.num_ranks() - 1) * most);
}

Result<std::unique_ptr<ExpertMover>> ExpertMover::Create(weights::PhasedWeights& weights,
                                                         const Phases& phases, comm::Group& group,
                                                         hardware::ThreadPool* pool,
                                                         memory::Ledger& ledger) {
  std::unique_ptr<ExpertMover> mover(new ExpertMover(weights, phases, group, pool));
  Result<memory::Reservation> staging = ledger.Allocate(
      memory::Use::kExchange, StagingBytes(weights.whole(), weights.formats(), phases));
  if (!staging) return staging.error();
  mover->staging_ = *std::move(staging);
  return mover;
}

// One layer's exchange: its own part at once, then round after round what others have.
class ExpertMover::Move : public comm::Exchange {
 public:
  Move(ExpertMover& mover, int layer, Phase phase)
      : mover_(mover),
        layer_(layer),
        phase_(phase),
        moe_(mover.MoeOf(layer)),
        cut_(CutOf(mover.weights_.whole(), moe_, formats(), mover.phases_)),
        change_(mover.weights_.Begin(layer, phase)) {
    const Phases& phases = mover.phases_;
    const bool to_decode = phase == Phase::kDecode;
    const auto old_parts = PartsOf(moe_, formats(), to_decode ? phases.prefill : phases.decode);
    const auto new_parts = PartsOf(moe_, formats(), to_decode ? phases.decode : phases.prefill);
    const int rank = mover.group_.rank();
    const auto one_way = static_cast<size_t>(cut_.pieces_per_round * cut_.piece_bytes);
    std::span<std::byte> staging = mover.staging_.bytes();
    for (int other = 0; other < mover.group_.size(); ++other) {
      Peer& peer = peers_.emplace_back();
      if (other == rank) continue;
      peer.sends = weights::PiecesOf(old_parts[rank], new_parts[other], cut_.columns);
      peer.receives = weights::PiecesOf(old_parts[other], new_parts[rank], cut_.columns);
      peer.out = staging.first(one_way);
      peer.in = staging.subspan(one_way, one_way);
      staging = staging.subspan(2 * one_way);
    }
    if (cut_.num_rounds > 0) StartRound();
    if (change_.from_part != change_.to_part) TakeOwn();
    if (cut_.num_rounds == 0) mover.weights_.End(layer, phase);
  }

  bool Test() override {
    while (exchange_ != nullptr && exchange_->Test()) {
      exchange_.reset();
      TakeReceived();
      ++round_;
      if (round_ < cut_.num_rounds) {
        StartRound();
      } else {
        mover_.weights_.End(layer_, phase_);
      }
    }
    return exchange_ == nullptr;
  }

 private:
  struct Peer {
    std::vector<ExpertPiece> sends;
    std::vector<ExpertPiece> receives;
    std::span<std::byte> out;
    std::span<std::byte> in;
  };
  // A half of an expert's piece that is copied here.
  struct Copy {
    ExpertPiece piece;
    FfnWeights from;
    int first = 0;  // columns of each
    FfnWeights to;
    int to_first = 0;
  };

  const weights::WeightFormats& formats() const { return mover_.weights_.formats(); }
  FfnWeights PieceAt(const ExpertPiece& piece, const std::byte* at) const {
    FfnWeights packed = weights::FfnOf(formats(), moe_.activation,
                                       mover_.weights_.whole().hidden_size, piece.slice.size);
    weights::PlaceFfnAt(at, &packed);
    return packed;
  }
  const FfnWeights& Old(int expert) const {
    return (*change_.from)[static_cast<size_t>(expert - change_.from_part.experts.first)];
  }
  const FfnWeights& New(int expert) const {
    return (*change_.to)[static_cast<size_t>(expert - change_.to_part.experts.first)];
  }
  // Those of this round.
  std::span<const ExpertPiece> InRound(const std::vector<ExpertPiece>& pieces) const {
    const auto per_round = static_cast<size_t>(cut_.pieces_per_round);
    const size_t first = std::min(pieces.size(), per_round * static_cast<size_t>(round_));
    return std::span(pieces).subspan(first, std::min(per_round, pieces.size() - first));
  }

  void RunCopies(const std::vector<Copy>& copies) const {
    const bool gated = moe_.activation.gated();
    const auto run = [&](int64_t index, int) {
      const Copy& copy = copies[static_cast<size_t>(index / 2)];
      if (index % 2 == 0) {
        weights::TakeUp(copy.piece, copy.from, copy.first, gated, copy.to, copy.to_first);
      } else {
        weights::TakeDown(copy.piece, copy.from, copy.first, copy.to, copy.to_first);
      }
    };
    const int64_t count = 2 * std::ssize(copies);
    if (mover_.pool_ != nullptr) {
      mover_.pool_->ParallelFor(count, run);
    } else {
      for (int64_t i = 0; i < count; ++i) run(i, 0);
    }
  }

  void TakeOwn() const {
    std::vector<Copy> copies;
    for (const ExpertPiece& piece :
         weights::PiecesOf(change_.from_part, change_.to_part, moe_.intermediate_size)) {
      copies.push_back({piece, Old(piece.expert), change_.from_part.slice.first, New(piece.expert),
                        change_.to_part.slice.first});
    }
    RunCopies(copies);
  }

  void StartRound() {
    std::vector<Copy> copies;
    std::vector<std::span<const std::byte>> send(peers_.size());
    std::vector<std::span<std::byte>> receive(peers_.size());
    for (size_t other = 0; other < peers_.size(); ++other) {
      const Peer& peer = peers_[other];
      size_t sent = 0;
      for (const ExpertPiece& piece : InRound(peer.sends)) {
        const FfnWeights packed = PieceAt(piece, peer.out.data() + sent);
        sent += weights::SizeBytes(packed);
        copies.push_back(
            {piece, Old(piece.expert), change_.from_part.slice.first, packed, piece.slice.first});
      }
      size_t received = 0;
      for (const ExpertPiece& piece : InRound(peer.receives)) {
        received += static_cast<size_t>(
            BytesOf(mover_.weights_.whole(), moe_, formats(), piece.slice.size));
      }
      send[other] = peer.out.first(sent);
      receive[other] = peer.in.first(received);
    }
    RunCopies(copies);
    exchange_ =
        mover_.group_.StartAllToAll(device::kDispatchQueue, send, receive,
                                    fmt::format("moving experts of decoder layer {}", layer_));
  }

  void TakeReceived() const {
    std::vector<Copy> copies;
    for (const Peer& peer : peers_) {
      const std::byte* at = peer.in.data();
      for (const ExpertPiece& piece : InRound(peer.receives)) {
        const FfnWeights packed = PieceAt(piece, at);
        at += weights::SizeBytes(packed);
        copies.push_back(
            {piece, packed, piece.slice.first, New(piece.expert), change_.to_part.slice.first});
      }
    }
    RunCopies(copies);
  }

  ExpertMover& mover_;
  int layer_;
  Phase phase_;
  const model::MoeSpec& moe_;
  Cut cut_;
  weights::PhasedWeights::Change change_;
  std::vector<Peer> peers_;  // by rank; nothing of this one
  int round_ = 0;
  std::unique_ptr<comm::Exchange> exchange_;
};

std::unique_ptr<comm::Exchange> ExpertMover::Start(int layer, Phase phase) {
  return std::make_unique<Move>(*this, layer, phase);
}

int64_t ExpertMover::SentBytes(int layer, Phase phase) const {
  const model::MoeSpec& moe = MoeOf(layer);
  const weights::WeightFormats& formats = weights_.formats();
  const Cut cut = CutOf(weights_.whole(), moe, formats, phases_);
  if (cut.num_rounds == 0) return 0;
  const bool to_decode = phase == Phase::kDecode;
  const auto old_parts = PartsOf(moe, formats, to_decode ? phases_.prefill : phases_.decode);
  const auto new_parts = PartsOf(moe, formats, to_decode ? phases_.decode : phases_.prefill);
  const int rank = group_.rank();
  int64_t bytes = 0;
  for (int other = 0; other < group_.size(); ++other) {
    if (other == rank) continue;
    for (const ExpertPiece& piece :
         weights::PiecesOf(old_parts[rank], new_parts[other], cut.columns)) {
      bytes += BytesOf(weights_.whole(), moe, formats, piece.slice.size);
    }
  }
  return bytes;
}

}  // namespace convene::runtime
