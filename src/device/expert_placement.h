// Which rank has each expert of a layer and, where chunks are cut by experts, which chunk of that
// rank's work it is in: tables as large as the layer. What goes there is expert_rows.h.
#pragma once

#include <cstdint>
#include <vector>

#include "strategy/role.h"
#include "strategy/step.h"

namespace convene::device {

class ExpertPlacement {
 public:
  // As `rank` sees it, whose peers are there for all that is to come.
  ExpertPlacement(int rank, const strategy::Roles& roles);

  // How the layers from here on are divided and cut; the same on all ranks.
  void Use(const strategy::Roles& roles, const strategy::Pipeline& pipeline);
  // The layer in work has so many experts.
  void BeginLayer(int num_experts);

  int num_experts() const { return num_experts_; }
  const strategy::Part& experts_of(int rank) const { return experts_of_[rank]; }
  const strategy::Part& own() const { return experts_of_[rank_]; }

  const strategy::Pipeline& pipeline() const { return pipeline_; }
  int num_chunks() const { return pipeline_.chunks; }
  bool by_experts() const {
    return num_chunks() > 1 && pipeline_.cut == strategy::ChunkCut::kExperts;
  }
  // By expert, where chunks are cut by experts: its chunk on each rank that has it.
  const std::vector<int32_t>& chunk_of() const { return chunk_of_; }

  // All other ranks are peers, in their order.
  int num_peers() const { return num_ranks_ - 1; }
  int RankOf(int peer) const { return peer < rank_ ? peer : peer + 1; }
  int PeerOf(int rank) const { return rank < rank_ ? rank : rank - 1; }
  // Whether rows of the one may go to experts of the other.
  bool SendsTo(int peer) const { return Sends(rank_, RankOf(peer)); }
  bool ReceivesFrom(int peer) const { return Sends(RankOf(peer), rank_); }

  // Calls f(peer, first, end) for each rank that a row goes to, -1: this one. The experts among
  // those that it chose, `experts` from `first` to `end`, in increasing order, are places there.
  template <typename F>
  void ForEachDestination(const int32_t* experts, int32_t first, int32_t end, F&& f) const {
    while (first < end) {
      const int share = share_of_[experts[first]];
      int32_t last = first + 1;
      while (last < end && share_of_[experts[last]] == share) ++last;
      for (int slice = 0; slice < roles_.expert_slices(); ++slice) {
        const int rank = roles_.RankOfSlice(share, slice);
        f(rank == rank_ ? -1 : PeerOf(rank), first, last);
      }
      first = last;
    }
  }

 private:
  bool Sends(int from, int to) const {
    return roles_.of(from).owns_rows() && roles_.of(to).has_experts();
  }

  int rank_;
  int num_ranks_;
  strategy::Roles roles_;
  strategy::Pipeline pipeline_;
  int num_experts_ = 0;
  bool is_placed_ = false;         // the tables are those of roles, pipeline and num_experts_
  std::vector<int32_t> share_of_;  // by expert
  std::vector<int32_t> chunk_of_;  // likewise; none: chunks are not cut by experts
  std::vector<strategy::Part> experts_of_;  // by rank
};

}  // namespace convene::device
