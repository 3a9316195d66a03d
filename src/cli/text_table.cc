#include "cli/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace convene::cli {

std::string TextTable::Format() const {
  constexpr std::string_view kIndent = "  ";
  constexpr size_t kGap = 3;  // between columns
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const size_t table_width = std::accumulate(widths.begin(), widths.end(), size_t{0}) +
                             kGap * (widths.empty() ? 0 : widths.size() - 1);

  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    if (row.empty()) line.assign(table_width, '-');
    for (size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i])
                     : fmt::format("{:>{}}", row[i], kGap + widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += fmt::format("{}{}\n", kIndent, line);
  }
  return text;
}

}  // namespace convene::cli
