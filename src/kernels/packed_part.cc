#include "kernels/packed_part.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/pack.h"

namespace convene::kernels {
namespace {

// Whatever the format, a row has cells of so many bytes, one beside the other with those of other
// rows: a float, a pair of bf16, four bytes of int8, or of int4.
constexpr int kCellBytes = 4;

int ColumnsOfCell(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return 1;
    case WeightFormat::kBf16:
      return 2;
    case WeightFormat::kInt8:
      return 4;
    case WeightFormat::kInt4:
      return 8;
  }
  return 1;
}

// A panel of the target, and where it is written.
struct WritablePanel {
  PackedPanel panel;
  std::byte* data;
};
WritablePanel PanelOf(const PackedMatrix& target, int panel_idx, std::byte* data) {
  const PackedPanel panel = target.panel(panel_idx);
  return {panel, data + (panel.data - target.data)};
}

// Where a row lies: of a gate-and-up matrix row `row` of its gate or of its up.
struct RowPlace {
  int packed_row = 0;
  int left = 0;  // rows from this one on that follow each other in one panel
};
RowPlace PlaceOf(const PackedMatrix& matrix, int row, bool gated, bool is_up) {
  if (!gated) return {row, kPanelRows - row % kPanelRows};
  constexpr int kHalf = kPanelRows / 2;
  const int panel = row / kHalf;
  const int half_width = std::min(kHalf, matrix.rows / 2 - panel * kHalf);
  const int in_half = row % kHalf;
  return {panel * kPanelRows + (is_up ? half_width : 0) + in_half, half_width - in_half};
}

// Rows [row, row + count) of one panel to rows [target_row, ...) of another.
void CopyCells(const PackedPanel& from, int row, const WritablePanel& target, int target_row,
               int count) {
  const size_t stride = size_t{kCellBytes} * static_cast<size_t>(from.width);
  const size_t target_stride = size_t{kCellBytes} * static_cast<size_t>(target.panel.width);
  const size_t size = size_t{kCellBytes} * static_cast<size_t>(count);
  const std::byte* source = from.data + size_t{kCellBytes} * static_cast<size_t>(row);
  std::byte* to = target.data + size_t{kCellBytes} * static_cast<size_t>(target_row);
  const int num_lines = from.padded() / ColumnsOfCell(from.format);
  for (int line = 0; line < num_lines; ++line, source += stride, to += target_stride) {
    std::memcpy(to, source, size);
  }
}

// Of int4 at most kLanes rows that are lanes of one block in both.
void CopyInt4Cells(const PackedPanel& from, int row, const WritablePanel& target, int target_row,
                   int count) {
  const auto block_of = [](const PackedPanel& panel, int group, int col, int lane_row) {
    return panel.group_offset(group) + kPanelRows + int64_t{col - group} * panel.width / 2 +
           lane_row / kLanes * kLanes * (kInt4Block / 2) + lane_row % kLanes * kCellBytes;
  };
  constexpr int kLineBytes = kLanes * kCellBytes;
  constexpr int kLines = kInt4Block / 8;
  const auto size = static_cast<size_t>(count);
  for (int col = 0; col < from.padded(); col += kInt4Block) {
    const int group = col / from.group * from.group;
    if (col == group) {
      std::memcpy(target.data + target.panel.group_offset(group) + target_row,
                  from.data + from.group_offset(group) + row, size);
    }
    const std::byte* source = from.data + block_of(from, group, col, row);
    std::byte* to = target.data + block_of(target.panel, group, col, target_row);
    for (int line = 0; line < kLines; ++line, source += kLineBytes, to += kLineBytes) {
      std::memcpy(to, source, size * kCellBytes);
    }
  }
}

void CopyScales(const PackedPanel& from, int row, const WritablePanel& target, int target_row,
                int count) {
  if (!IsInteger(from.format)) return;
  std::memcpy(target.data + target.panel.values_bytes() + size_t{4} * target_row,
              from.scales() + row, size_t{4} * static_cast<size_t>(count));
}

void TakeHalf(const PartOfRows& part, bool is_up, const PackedMatrix& target, std::byte* data) {
  for (int done = 0; done < part.count;) {
    const RowPlace source = PlaceOf(part.from, part.first + done, part.gated, is_up);
    const RowPlace to = PlaceOf(target, part.target_first + done, part.gated, is_up);
    const int row = source.packed_row % kPanelRows;
    const int target_row = to.packed_row % kPanelRows;
    int count = std::min({part.count - done, source.left, to.left});
    const PackedPanel panel = part.from.panel(source.packed_row / kPanelRows);
    const WritablePanel target_panel = PanelOf(target, to.packed_row / kPanelRows, data);
    if (panel.format == WeightFormat::kInt4) {
      count = std::min({count, kLanes - row % kLanes, kLanes - target_row % kLanes});
      CopyInt4Cells(panel, row, target_panel, target_row, count);
    } else {
      CopyCells(panel, row, target_panel, target_row, count);
    }
    CopyScales(panel, row, target_panel, target_row, count);
    done += count;
  }
}

// Groups are contiguous: [first, first + count) columns are one run of bytes.
void CopyGroups(const PackedPanel& from, int first, const WritablePanel& target, int target_first,
                int count) {
  const auto end_of = [&](const PackedPanel& panel, int end) {
    if (end % panel.group == 0) return panel.group_offset(end);
    CHECK(end == panel.depth, "an int4 part ends in a group, at column {} of {}", end, panel.depth);
    // Up to the padding of the last group.
    const int last = end / panel.group * panel.group;
    const int padded = std::min(panel.group, panel.padded() - last);
    return panel.group_offset(last) + kPanelRows + int64_t{padded} * panel.width / 2;
  };
  CHECK(first % from.group == 0 && target_first % from.group == 0,
        "an int4 part begins in a group, at column {} or {}", first, target_first);
  const int64_t size = end_of(from, first + count) - from.group_offset(first);
  const int64_t target_at = target.panel.group_offset(target_first);
  CHECK(size == end_of(target.panel, target_first + count) - target_at);
  std::memcpy(target.data + target_at, from.data + from.group_offset(first),
              static_cast<size_t>(size));
}

void CopyColumn(const PackedPanel& from, int col, const WritablePanel& target, int target_col) {
  const int in_cell = ColumnsOfCell(from.format);
  const auto element = static_cast<size_t>(kCellBytes / in_cell);
  const auto at = [&](int column) {
    return size_t{kCellBytes} * (static_cast<size_t>(column / in_cell) * from.width) +
           static_cast<size_t>(column % in_cell) * element;
  };
  const std::byte* source = from.data + at(col);
  std::byte* to = target.data + at(target_col);
  for (int row = 0; row < from.width; ++row, source += kCellBytes, to += kCellBytes) {
    std::memcpy(to, source, element);
  }
}

void CopyColumns(const PackedPanel& from, int first, const WritablePanel& target, int target_first,
                 int count) {
  const int in_cell = ColumnsOfCell(from.format);
  int done = 0;
  if (first % in_cell == 0 && target_first % in_cell == 0) {
    const size_t line_bytes = size_t{kCellBytes} * static_cast<size_t>(from.width);
    const auto lines = static_cast<size_t>(count / in_cell);
    std::memcpy(target.data + static_cast<size_t>(target_first / in_cell) * line_bytes,
                from.data + static_cast<size_t>(first / in_cell) * line_bytes, lines * line_bytes);
    done = count / in_cell * in_cell;
  }
  for (; done < count; ++done) CopyColumn(from, first + done, target, target_first + done);
}

}  // namespace

void TakeRows(const PartOfRows& part, const PackedMatrix& target, std::byte* data) {
  CHECK(part.from.format == target.format && part.from.cols == target.cols &&
            part.from.group == target.group,
        "rows of {} columns in {}, for {} in {}", part.from.cols, Name(part.from.format),
        target.cols, Name(target.format));
  TakeHalf(part, /*is_up=*/false, target, data);
  if (part.gated) TakeHalf(part, /*is_up=*/true, target, data);
}

void TakeColumns(const PartOfColumns& part, const PackedMatrix& target, std::byte* data) {
  CHECK(part.from.format == target.format && part.from.rows == target.rows &&
            part.from.group == target.group,
        "columns of {} rows in {}, for {} in {}", part.from.rows, Name(part.from.format),
        target.rows, Name(target.format));
  for (int i = 0; i < target.num_panels(); ++i) {
    const PackedPanel panel = part.from.panel(i);
    const WritablePanel to = PanelOf(target, i, data);
    if (target.format == WeightFormat::kInt4) {
      CopyGroups(panel, part.first, to, part.target_first, part.count);
    } else {
      CopyColumns(panel, part.first, to, part.target_first, part.count);
    }
    CopyScales(panel, 0, to, 0, panel.width);
  }
}

bool HasPadding(const PackedMatrix& matrix, bool gated, int count) {
  const int filled_rows = gated ? 2 * count : count;
  return matrix.rows != filled_rows || matrix.cols % kDepthPadding != 0 ||
         matrix.rows % kPanelRows != 0;
}

void PackZeros(const PackedMatrix& matrix, std::byte* data) {
  std::memset(data, 0, matrix.size_bytes());
  const RowSource rows[kLanes] = {};
  for (int group = 0; group * kLanes < matrix.rows; ++group) {
    const bool is_finite = PackGroup(rows, matrix, group, data);
    CHECK(is_finite, "zeros are finite");
  }
}

}  // namespace convene::kernels
