// What was typed in conversations before, oldest first, kept in a file of its owner: a JSON string
// per line. Several programs may add to it at the same time. Does not know what is typed now.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace convene::cli {

class TurnHistory {
 public:
  // The turns of the file `path`, which need not be there. What is no JSON string in it is passed
  // over, and a file that has grown long is cut to the latest turns.
  // Error: it cannot be read.
  static Result<TurnHistory> Load(const std::string& path);

  const std::vector<std::string>& turns() const { return turns_; }

  // Adds `turn` at the end, here and in the file; the same twice in a row is one. Error: the file
  // cannot be written.
  Status Add(const std::string& turn);

 private:
  explicit TurnHistory(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::vector<std::string> turns_;
};

}  // namespace convene::cli
