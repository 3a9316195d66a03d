#include "runtime/row_exchange.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "strategy/layer_pipeline.h"

namespace convene::runtime {
namespace {

using Send = std::vector<std::span<const std::byte>>;
using Receive = std::vector<std::span<std::byte>>;

using device::Frame;
using device::kCombineQueue;
using device::kDispatchQueue;
using device::OwnRows;
using device::TravellingRows;

size_t RowBytes(const Frame& frame, TravellingRows kind) {
  return frame.memory->HostRows(kind, {0, 1}).size();
}

// Complete when both are.
class BothExchanges : public comm::Exchange {
 public:
  BothExchanges(std::unique_ptr<comm::Exchange> first, std::unique_ptr<comm::Exchange> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  bool Test() override {
    const bool first_done = first_->Test();
    return second_->Test() && first_done;
  }

 private:
  std::unique_ptr<comm::Exchange> first_;
  std::unique_ptr<comm::Exchange> second_;
};

}  // namespace

std::unique_ptr<comm::Exchange> RowExchange::StartGatherNormed(const Frame& frame,
                                                               std::string what) {
  Send send(static_cast<size_t>(roles_.num_ranks()));
  Receive receive(send.size());
  const auto rows_of = [&](OwnRows rows) {
    return frame.memory->HostRows(TravellingRows::kNormed, rows);
  };
  for (int part = 0; part < own().parts; ++part) {
    const int rank = RankOfPart(part);
    if (rank == rank_) continue;
    send[rank] = rows_of(frame.own());
    receive[rank] = rows_of(frame.owners[part]);
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, std::move(what));
}

std::unique_ptr<comm::Exchange> RowExchange::StartNormSums(const Frame& frame, std::string what) {
  const int num_rows = frame.rows.num_rows();
  Send send(static_cast<size_t>(roles_.num_ranks()));
  Receive receive(send.size());
  const size_t count = static_cast<size_t>(num_rows) * 2;
  const auto part_of = [&](int part) {
    return frame.row_buffers.squares.subspan(part * count, count);
  };
  for (int part = 0; part < own().parts; ++part) {
    const int rank = RankOfPart(part);
    if (rank == rank_) continue;
    send[rank] = std::as_bytes(part_of(own().part));
    receive[rank] = std::as_writable_bytes(part_of(part));
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, std::move(what));
}

std::unique_ptr<comm::Exchange> RowExchange::StartScatterSums(const Frame& frame,
                                                              std::string what) {
  Send send(static_cast<size_t>(roles_.num_ranks()));
  Receive receive(send.size());
  const size_t own_bytes = frame.own().count * sum_bytes_;
  CHECK(own().parts * own_bytes <= frame.row_buffers.sums_in.size(), "{} rows here",
        frame.own().count);
  for (int part = 0; part < own().parts; ++part) {
    const int rank = RankOfPart(part);
    if (rank == rank_) continue;
    send[rank] = frame.row_buffers.sums_out.subspan(frame.owners[part].first * sum_bytes_,
                                                    frame.owners[part].count * sum_bytes_);
    receive[rank] = frame.row_buffers.sums_in.subspan(part * own_bytes, own_bytes);
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, std::move(what));
}

std::unique_ptr<comm::Exchange> RowExchange::StartPassRows(const Frame& frame, int from,
                                                           std::string what) {
  Send send(static_cast<size_t>(roles_.num_ranks()));
  Receive receive(send.size());
  const std::span<std::byte> rows =
      frame.memory->HostRows(TravellingRows::kHidden, {0, frame.rows.num_rows()});
  if (from == rank_) {
    send[from + 1] = rows;
  } else {
    receive[from] = rows;
  }
  const int queue =
      strategy::LaneBehind(from) == schedule::LaneKind::kSend ? kDispatchQueue : kCombineQueue;
  return group_->StartAllToAll(queue, send, receive, std::move(what));
}

std::unique_ptr<comm::Exchange> RowExchange::StartGatherRows(const Frame& frame,
                                                             TravellingRows kind,
                                                             std::span<uint32_t> statuses) {
  Send send(static_cast<size_t>(roles_.num_ranks()));
  Receive receive(send.size());
  const auto gets_rows = [&](int rank) {
    return rank == 0 || (roles_.divides_head() && kind == TravellingRows::kNormed);
  };
  const bool has_some = roles_.of(rank_).gives_output() && !frame.rows.wanted().empty();
  for (int rank = 0; rank < roles_.num_ranks(); ++rank) {
    if (rank == rank_) continue;
    if (has_some && gets_rows(rank)) send[rank] = frame.memory->HostRows(kind, frame.own());
    if (!gets_rows(rank_)) continue;
    const size_t size = RowBytes(frame, kind) * frame.wanted_counts[rank];
    CHECK(size <= frame.row_buffers.gathered[rank].size(), "{} rows of rank {}",
          frame.wanted_counts[rank], rank);
    receive[rank] = frame.row_buffers.gathered[rank].first(size);
  }
  return WithStatuses(
      group_->StartAllToAll(kDispatchQueue, send, receive, "gathering rows of the output"),
      statuses);
}

std::unique_ptr<comm::Exchange> RowExchange::StartGatherLogits(const Frame& frame,
                                                               std::span<const size_t> sizes,
                                                               std::span<uint32_t> statuses) const {
  Send send(static_cast<size_t>(roles_.num_ranks()));
  Receive receive(send.size());
  if (rank_ > 0) send[0] = frame.row_buffers.logits_out.first(sizes[rank_]);
  for (int rank = 1; rank_ == 0 && rank < roles_.num_ranks(); ++rank) {
    receive[rank] = frame.row_buffers.logits_in[rank].first(sizes[rank]);
  }
  return WithStatuses(group_->StartAllToAll(kDispatchQueue, send, receive, "gathering logits"),
                      statuses);
}

std::unique_ptr<comm::Exchange> RowExchange::WithStatuses(std::unique_ptr<comm::Exchange> rows,
                                                          std::span<uint32_t> statuses) const {
  Send send(static_cast<size_t>(roles_.num_ranks()));
  Receive receive(send.size());
  for (int rank = 0; rank < roles_.num_ranks(); ++rank) {
    if (rank == rank_) continue;
    static_assert(sizeof(uint32_t) == strategy::kStatusBytes);
    send[rank] = std::as_bytes(statuses.subspan(static_cast<size_t>(rank_), 1));
    receive[rank] = std::as_writable_bytes(statuses.subspan(static_cast<size_t>(rank), 1));
  }
  return std::make_unique<BothExchanges>(
      std::move(rows), group_->StartAllToAll(kDispatchQueue, send, receive, "ending a step"));
}

const std::byte* RowExchange::GatheredRow(const Frame& frame, TravellingRows kind, int rank,
                                          int row_idx) const {
  return frame.row_buffers.gathered[rank].data() + row_idx * RowBytes(frame, kind);
}

}  // namespace convene::runtime
