#include "text/tokenizer_file.h"

#include <filesystem>

#include "base/json.h"
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

Result<nlohmann::json> ReadJsonFile(const std::string& path) {
  const auto contents = ReadTokenizerFile(path);
  if (!contents) return contents.error();
  auto document = ParseJson(*contents);
  if (!document) return Error{fmt::format("{}: {}", path, document.error().message)};
  return document;
}

}  // namespace convene::text
