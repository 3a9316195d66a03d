// Tables as comma-separated text (RFC 4180) with a line of names first. What the columns mean is up
// to the caller.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace convene::cost {

inline constexpr size_t kMostCsvRows = 1 << 20;
inline constexpr size_t kMostCsvColumns = 64;

class CsvTable {
 public:
  // Errors: no line of names, one name twice, a row with another number of fields, quotes that do
  // not end, more rows or columns than the limits above; with the line. A byte order mark is
  // skipped.
  static Result<CsvTable> Parse(std::string_view text);

  size_t num_rows() const { return columns_.empty() ? 0 : fields_.size() / columns_.size() - 1; }
  // -1: there is none.
  int column(std::string_view name) const;
  const std::string& at(size_t row, int column) const {
    return fields_[(row + 1) * columns_.size() + column];
  }
  const std::vector<std::string>& columns() const { return columns_; }
  // Where the row begins in the text, from 1; lines within quotes count as none.
  size_t line_of(size_t row) const { return lines_[row + 1]; }

 private:
  std::vector<std::string> columns_;
  std::vector<std::string> fields_;  // (num_rows + 1, num_columns): the names as well
  std::vector<size_t> lines_;        // (num_rows + 1), likewise
};

}  // namespace convene::cost
