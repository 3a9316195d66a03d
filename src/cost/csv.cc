#include "cost/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/units.h"

namespace convene::cost {
namespace {

// The fields of the line that begins at `at`, which then stands behind it. False: a quote is open.
bool ReadLine(std::string_view text, size_t& at, std::vector<std::string>& fields) {
  fields.assign(1, "");
  bool is_quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (is_quoted) {
      if (c != '"') {
        fields.back() += c;
      } else if (at + 1 < text.size() && text[at + 1] == '"') {
        fields.back() += text[++at];
      } else {
        is_quoted = false;
      }
    } else if (c == '"' && fields.back().empty()) {
      is_quoted = true;
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      ++at;
      return true;
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return !is_quoted;
}

}  // namespace

Result<CsvTable> CsvTable::Parse(std::string_view text) {
  CsvTable table;
  std::vector<std::string> fields;
  size_t line = 0;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // as spreadsheets write it
  for (size_t at = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
       at < text.size();) {
    ++line;
    if (!ReadLine(text, at, fields)) {
      return Error{fmt::format("line {} has a quote that does not end", line)};
    }
    if (fields.size() == 1 && fields[0].empty()) continue;
    if (table.columns_.empty()) {
      if (fields.size() > kMostCsvColumns) {
        return Error{
            fmt::format("it has {} columns; at most {} are read", fields.size(), kMostCsvColumns)};
      }
      table.columns_ = fields;
      const std::set<std::string> names(fields.begin(), fields.end());
      if (names.size() != fields.size()) return Error{"two of its columns have the same name"};
    } else if (fields.size() != table.columns_.size()) {
      return Error{fmt::format("line {} has {}; the first line names {}", line,
                               FormatCount(fields.size(), "field"), table.columns_.size())};
    }
    table.lines_.push_back(line);
    table.fields_.insert(table.fields_.end(), fields.begin(), fields.end());
    if (table.num_rows() > kMostCsvRows) {
      return Error{fmt::format("it has more than {} rows", kMostCsvRows)};
    }
  }
  if (table.columns_.empty()) return Error{"it is empty; its first line must name its columns"};
  return table;
}

int CsvTable::column(std::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  return found == columns_.end() ? -1 : static_cast<int>(found - columns_.begin());
}

}  // namespace convene::cost
