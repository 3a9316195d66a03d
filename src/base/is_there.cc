#include "base/is_there.h"

#include <sys/stat.h>

#include <cerrno>

namespace convene {

bool IsThere(const std::string& path) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) == 0) return true;
  return errno != ENOENT && errno != ENOTDIR;
}

}  // namespace convene
