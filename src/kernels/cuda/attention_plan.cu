// How a step's attention is divided among blocks of a grid. Host code.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_forms.h"
#include "kernels/cuda/require.h"

namespace convene::kernels::cuda {
namespace {

// Up to so many rows of a KV head are taken as small tiles: with a large one, most of its rows
// would be none.
constexpr int kMostSmallRows = 64;
// Floats that divided tiles write, unless the tiles of a single sequence need more.
constexpr int64_t kMostDividedFloats = int64_t{16} << 20;

// Of all KV heads.
struct Tile {
  AttentionWork work = {};
  int64_t cost = 0;
  int pieces = 1;
};

constexpr int CeilDivide(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

class Planner {
 public:
  Planner(const AttentionShape& shape, const std::vector<QueryRows>& sequences,
          int num_multiprocessors)
      : shape_(shape), sequences_(sequences), group_(shape.num_heads / shape.num_kv_heads) {
    const int form = AttentionFormOf(shape);
    Require(form >= 0, "attention of heads as large as these is not compiled");
    form_ = kAttentionForms[form];
    slots_ = std::max(1, form_.blocks_of_multiprocessor() * num_multiprocessors);
  }

  AttentionPlan Plan() {
    for (int i = 0; i < static_cast<int>(sequences_.size()); ++i) AddTiles(i);
    Divide();
    // The longest first; where they are as long, in their order.
    std::stable_sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) {
      return a.cost * b.pieces > b.cost * a.pieces;
    });
    size_t num_work = 0;
    for (const Tile& tile : tiles_) num_work += static_cast<size_t>(tile.pieces);
    plan_.work.reserve(num_work * static_cast<size_t>(shape_.num_kv_heads));
    for (const Tile& tile : tiles_) Emit(tile);
    return std::move(plan_);
  }

 private:
  void AddTiles(int index) {
    const QueryRows& rows = sequences_[static_cast<size_t>(index)];
    Require(int64_t{rows.num_rows} * group_ * group_ < INT32_MAX,
            "a step has more rows of a sequence than attention's kernels count");
    const int num_rows = rows.num_rows * group_;
    const bool is_large = num_rows > kMostSmallRows;
    const int tile_rows = form_.tile(is_large).rows();
    for (int first = 0; first < num_rows; first += tile_rows) {
      Tile tile;
      tile.work.sequence = index;
      tile.work.first_row = first;
      tile.work.num_rows = std::min(tile_rows, num_rows - first);
      tile.work.is_large = static_cast<int16_t>(is_large);
      const int first_position = rows.first_position + first / group_;
      const int last_position = rows.first_position + (first + tile.work.num_rows - 1) / group_;
      const int begin = shape_.window > 0 ? std::max(0, first_position - shape_.window + 1) : 0;
      const int end = rows.num_keys > 0 ? rows.num_keys : last_position + 1;
      tile.work.first_span = begin / kKeysOfSpan;
      tile.work.num_spans = CeilDivide(end, kKeysOfSpan) - tile.work.first_span;
      // A large tile takes about four times as long as a small one for the same keys.
      const int64_t blocks = CeilDivide(end, kKeysOfBlock) - begin / kKeysOfBlock;
      tile.cost = (is_large ? 4 : 1) * blocks;
      tiles_.push_back(tile);
    }
  }

  int64_t FloatsOf(const Tile& tile) const {
    return PartialFloats(form_, tile.work.is_large != 0, tile.work.num_rows);
  }

  // Tiles that would keep a few multiprocessors busy when all others are done.
  void Divide() {
    int64_t total = 0;
    int64_t most = 0;
    for (const Tile& tile : tiles_) {
      total += tile.cost;
      most = std::max(most, tile.cost);
    }
    const double share = static_cast<double>(total) * shape_.num_kv_heads / slots_;
    if (static_cast<double>(most) <= 1.25 * share) return;
    int64_t floats = 0;
    for (Tile& tile : tiles_) {
      const int spans = tile.work.num_spans;
      if (spans < 2 || static_cast<double>(tile.cost) <= 0.75 * share) continue;
      const int64_t needed = FloatsOf(tile) * spans * shape_.num_kv_heads;
      const bool is_first = floats == 0 && tile.work.is_large == 0;
      if (!is_first && floats + needed > kMostDividedFloats) continue;
      floats += needed;
      const int wanted = static_cast<int>(
          std::min<double>(spans, 2.0 * static_cast<double>(tile.cost) / std::max(share, 0.5) + 1));
      const int spans_of_piece = spans / wanted;
      tile.pieces = CeilDivide(spans, spans_of_piece);
    }
  }

  int32_t Reserve(int64_t floats) {
    const int64_t unit = plan_.partial_floats / kPartialUnit;
    Require(unit <= INT32_MAX, "partial sums of attention are too many");
    plan_.partial_floats += floats;
    return static_cast<int32_t>(unit);
  }

  void Emit(const Tile& tile) {
    const int64_t floats = FloatsOf(tile);
    for (int kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
      AttentionWork work = tile.work;
      work.kv_head = kv_head;
      if (tile.pieces == 1) {
        if (work.num_spans > 1 && !form_.KeepsTotals(work.is_large != 0)) {
          work.partial = Reserve(floats);
        }
        plan_.work.push_back(work);
        continue;
      }
      work.partial = Reserve(floats * work.num_spans);
      work.is_part = 1;
      plan_.folds.push_back(work);
      const int spans_of_piece = CeilDivide(tile.work.num_spans, tile.pieces);
      for (int done = 0; done < tile.work.num_spans; done += spans_of_piece) {
        AttentionWork piece = work;
        piece.first_span = work.first_span + done;
        piece.num_spans = std::min(spans_of_piece, tile.work.num_spans - done);
        piece.partial = work.partial + static_cast<int32_t>(floats / kPartialUnit * done);
        plan_.work.push_back(piece);
      }
    }
  }

  const AttentionShape& shape_;
  const std::vector<QueryRows>& sequences_;
  int group_;
  int slots_ = 1;  // blocks that all multiprocessors have at a time
  AttentionForm form_;
  std::vector<Tile> tiles_;
  AttentionPlan plan_;
};

}  // namespace

AttentionPlan PlanAttention(const AttentionShape& shape, const std::vector<QueryRows>& sequences,
                            int num_multiprocessors) {
  return Planner(shape, sequences, num_multiprocessors).Plan();
}

int64_t MostPartialFloats(const AttentionShape& shape, int num_rows, int context) {
  const int form_index = AttentionFormOf(shape);
  Require(form_index >= 0, "attention of heads as large as these is not compiled");
  const AttentionForm& form = kAttentionForms[form_index];
  const int64_t rows = int64_t{num_rows} * (shape.num_heads / shape.num_kv_heads);
  const int64_t spans = CeilDivide(context, kKeysOfSpan);
  // One small tile, however long its sequence.
  const int64_t small = PartialFloats(form, false, form.small.rows()) * spans;
  // Totals of large tiles: each sequence has more than kMostSmallRows rows, and its last tile is
  // filled up to whole warps.
  int64_t totals = 0;
  if (!form.KeepsTotals(true)) {
    const int64_t padding = (rows / kMostSmallRows + 1) * form.large.rows_of_warp();
    totals = (rows + padding) * (form.value_dim + 2);
  }
  return std::max(kMostDividedFloats, small * shape.num_kv_heads) + totals * shape.num_kv_heads;
}

}  // namespace convene::kernels::cuda
