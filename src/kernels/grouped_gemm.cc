#include "kernels/grouped_gemm.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/streaming_choice.h"
#include "kernels/unit_shares.h"

namespace convene::kernels {
namespace {

// The work is numbered panel by panel, group by group; long groups are also cut along their rows
// where there are too few panels to keep all threads busy.
class WorkList {
 public:
  WorkList(const GroupedGemm& gemm, const StreamingChoice* streaming, int num_threads)
      : gemm_(gemm) {
    const PackedMatrix& first = *gemm.groups.front().weights;
    num_panels_ = first.num_panels();
    const int64_t panels = int64_t{num_panels_} * std::ssize(gemm.groups);
    int most_rows = 1;
    int64_t num_rows = 0;
    for (const GemmGroup& group : gemm.groups) {
      most_rows = std::max(most_rows, group.num_rows);
      num_rows += group.num_rows;
    }
    const bool whole_lines =
        reinterpret_cast<uintptr_t>(gemm.out) % 64 == 0 && gemm.out_stride % 64 == 0;
    streams_out_ = gemm.epilogue == Epilogue::kStore && gemm.parameters.scale == 1 && whole_lines &&
                   num_rows * gemm.out_stride >= kStreamedBytes;
    const int64_t wanted = std::max<int64_t>(1, kUnitsPerThread * num_threads / panels);
    const int64_t cut = (most_rows + wanted - 1) / wanted;
    rows_per_unit_ = static_cast<int>(std::max<int64_t>(kMinRowsPerUnit, cut));
    row_units_ = (most_rows + rows_per_unit_ - 1) / rows_per_unit_;
    static const StreamingChoice of_cpu = StreamingChoice::OfCpu();
    streaming_ = (streaming != nullptr ? *streaming : of_cpu).For(first.format, most_rows);
  }

  bool own_shares() const { return streaming_.own_shares; }
  // How many units a thread takes at once, at most.
  int64_t most_units() const { return streaming_.own_shares ? kMostPanels * row_units_ : 1; }

  int64_t size() const { return int64_t{num_panels_} * row_units_ * std::ssize(gemm_.groups); }

  // The unit of that index and, where they are panels that follow it, those up to `end`: as many as
  // a kernel takes at once. Returns how many units that are. They have no rows where the group has
  // none.
  int64_t Units(int64_t index, int64_t end, PanelGemm* unit) const {
    const int row_unit = static_cast<int>(index % row_units_);
    const int panel = static_cast<int>(index / row_units_ % num_panels_);
    const GemmGroup& group = gemm_.groups[index / row_units_ / num_panels_];
    const int skipped = row_unit * rows_per_unit_;
    unit->num_rows = std::min(rows_per_unit_, group.num_rows - skipped);
    if (unit->num_rows <= 0) return 1;
    const PackedMatrix& weights = *group.weights;
    const int first_row = group.first_row + skipped;
    const bool gated = IsGated(gemm_.epilogue);
    const int panel_columns = gated ? kPanelRows / 2 : kPanelRows;
    const int width = weights.panel_width(panel);
    unit->weights = weights.panel(panel);
    unit->streaming = streaming_;
    unit->activations = gemm_.activations;
    unit->rows = gemm_.rows + first_row * gemm_.row_stride;
    unit->row_stride = gemm_.row_stride;
    unit->epilogue = gemm_.epilogue;
    unit->parameters = gemm_.parameters;
    unit->out_format = gemm_.out_format;
    unit->columns = gated ? width / 2 : std::min(kPanelRows, weights.rows - panel * kPanelRows);
    const int64_t element =
        MakesActivations(gemm_.epilogue) ? ElementBytes(gemm_.out_format) : int64_t{sizeof(float)};
    unit->out = gemm_.out + first_row * gemm_.out_stride + int64_t{panel} * panel_columns * element;
    unit->out_stride = gemm_.out_stride;
    unit->streams_out = streams_out_ && group.bias == nullptr && unit->columns == kPanelRows;
    unit->bias = group.bias != nullptr ? group.bias + panel * kPanelRows : nullptr;
    // Only whole panels are alike.
    const int64_t alike = std::min<int64_t>(end - index, weights.rows / kPanelRows - panel);
    unit->num_panels =
        row_units_ > 1 ? 1 : static_cast<int>(std::clamp<int64_t>(alike, 1, kMostPanels));
    return unit->num_panels;
  }

 private:
  static constexpr int kUnitsPerThread = 4;
  static constexpr int kMinRowsPerUnit = 48;
  // A larger output leaves the caches of a core, beside the weights that pass through them, before
  // it is read. Fetching its lines only to overwrite them took a tenth of prefill
  // (docs/results/int_gemm.md).
  static constexpr int64_t kStreamedBytes = int64_t{4} << 20;

  const GroupedGemm& gemm_;
  int num_panels_ = 0;
  int rows_per_unit_ = 0;
  int row_units_ = 0;
  bool streams_out_ = false;
  PanelStreaming streaming_;
};

void RunGroups(const KernelSet& kernels, hardware::ThreadPool& pool, const GroupedGemm& gemm) {
  const WorkList work(gemm, kernels.streaming, pool.size());
  const int num_threads =
      gemm.num_threads > 0 ? std::min(gemm.num_threads, pool.size()) : pool.size();
  UnitShares shares(work.size(), work.own_shares() ? num_threads : 1);
  pool.Run([&](int thread_idx) {
    if (thread_idx >= num_threads) return;
    const int share_idx = work.own_shares() ? thread_idx : 0;
    UnitShares::Units taken;
    const auto claim = [&](PanelGemm* unit) {
      for (;;) {
        if (taken.begin == taken.end) taken = shares.Take(share_idx, work.most_units());
        if (taken.begin == taken.end) return false;
        taken.begin += work.Units(taken.begin, taken.end, unit);
        if (unit->num_rows > 0) return true;
      }
    };
    // Two of them in turn: copying one just written would wait for all the stores before it.
    PanelGemm units[2];
    units[0].scratch = units[1].scratch = gemm.scratch + thread_idx * kGemmScratchBytes;
    PanelGemm* current = &units[0];
    PanelGemm* next = &units[1];
    bool more = claim(current);
    while (more) {
      more = claim(next);
      current->next = more ? next->weights.data : nullptr;
      current->next_bytes = more ? next->weights.values_bytes() : 0;
      kernels.gemm(*current);
      std::swap(current, next);
    }
  });
}

}  // namespace

void RunGroupedGemm(const KernelSet& kernels, hardware::ThreadPool& pool, const GroupedGemm& gemm) {
  if (gemm.groups.empty()) return;
  if (gemm.order == GemmOrder::kGrouped) return RunGroups(kernels, pool, gemm);
  for (size_t group = 0; group < gemm.groups.size(); ++group) {
    GroupedGemm one = gemm;
    one.groups = gemm.groups.subspan(group, 1);
    RunGroups(kernels, pool, one);
  }
}

}  // namespace convene::kernels
