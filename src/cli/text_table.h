// Aligned columns of text for people. Not a format to parse: that is --json.
#pragma once

#include <string>
#include <vector>

namespace convene::cli {

// The first column is aligned to the left, all others to the right.
class TextTable {
 public:
  // A row may have fewer cells than others; the missing ones are empty.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // A line of dashes across the table.
  void AddRule() { rows_.emplace_back(); }

  // Every line indented by two spaces and ended by a newline, without trailing spaces.
  std::string Format() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace convene::cli
