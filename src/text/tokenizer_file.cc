#include "text/tokenizer_file.h"

#include <filesystem>

#include "base/read_file.h"

namespace convene::text {

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

Result<std::string> ReadTokenizerFile(const std::string& path) {
  constexpr uint64_t kMaxBytes = 512 << 20;
  return ReadFile(path, kMaxBytes);
}

}  // namespace convene::text
