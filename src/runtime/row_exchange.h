// What ranks exchange of a frame's rows besides the experts' (device/expert_rows.h): normed rows
// and partial sums of those that divide attention's heads, and the rows whose logits are wanted.
// What travels was packed by the device, which also unpacks it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/group.h"
#include "device/frame.h"
#include "device/wire_rows.h"
#include "strategy/role.h"

namespace convene::runtime {

class RowExchange {
 public:
  // `group` may be null where there is one rank.
  RowExchange(const strategy::Roles& roles, int rank, const device::WireRows& wire,
              comm::Group* group)
      : roles_(roles), rank_(rank), sum_bytes_(size_t(wire.sum_bytes)), group_(group) {}

  // Normed rows: own ones go to the others, theirs come to their places.
  std::unique_ptr<comm::Exchange> StartGatherNormed(const device::Frame& frame, std::string what);
  // The sums of squares of all parts.
  std::unique_ptr<comm::Exchange> StartNormSums(const device::Frame& frame, std::string what);
  // Partial sums to the rows' owners.
  std::unique_ptr<comm::Exchange> StartScatterSums(const device::Frame& frame, std::string what);

  // All rows of the residual stream from rank `from` to the one behind it, one of which this is.
  std::unique_ptr<comm::Exchange> StartPassRows(const device::Frame& frame, int from,
                                                std::string what);

  // The ranks with the head get everybody's rows of the kind whose output is wanted: all own rows,
  // or none; rank 0 alone those of an encoder. With them every rank gets `statuses` of all others
  // (by rank; its own is sent), which ends a step.
  std::unique_ptr<comm::Exchange> StartGatherRows(const device::Frame& frame,
                                                  device::TravellingRows kind,
                                                  std::span<uint32_t> statuses);
  // Rank 0 gets the logits of all others, `sizes` bytes of each, which lie in the frame's buffers;
  // and every rank statuses again.
  std::unique_ptr<comm::Exchange> StartGatherLogits(const device::Frame& frame,
                                                    std::span<const size_t> sizes,
                                                    std::span<uint32_t> statuses) const;
  // After StartGatherRows, on a rank that got them: such a row of another rank.
  const std::byte* GatheredRow(const device::Frame& frame, device::TravellingRows kind, int rank,
                               int row_idx) const;

 private:
  // Complete when `rows` is, and statuses have been exchanged.
  std::unique_ptr<comm::Exchange> WithStatuses(std::unique_ptr<comm::Exchange> rows,
                                               std::span<uint32_t> statuses) const;

  const strategy::AttentionRole& own() const { return *roles_.of(rank_).attention; }
  int RankOfPart(int part) const { return roles_.RankOfPart(own().group, part); }

  strategy::Roles roles_;
  int rank_;
  size_t sum_bytes_;
  comm::Group* group_;
};

}  // namespace convene::runtime
