// The file that a benchmark's figures go to. It knows nothing of what is in it.
#pragma once

#include <cerrno>
#include <fstream>
#include <string>
#include <string_view>

#include "base/result.h"

namespace convene::bench {

// Before the first run, so that a path that cannot be written does not cost the runs; no path is
// none to write. What is in the file stays. Error: it cannot be opened for writing.
inline Status CheckResultsFile(const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return {};
  return SystemError("cannot write " + path + " (choose another file)", errno);
}

// In place of what the file had; no path is none to write. Error: not all of it could be written.
inline Status WriteResultsFile(const std::string& path, std::string_view text) {
  if (path.empty()) return {};
  std::ofstream file(path);
  file << text << std::flush;
  if (file) return {};
  return SystemError("could not write all of " + path + " (choose another file, or make room)",
                     errno);
}

}  // namespace convene::bench
