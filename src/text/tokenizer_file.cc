#include "text/tokenizer_file.h"

#include "base/read_file.h"

namespace convene::text {

Result<std::string> ReadTokenizerFile(const std::string& path) {
  constexpr uint64_t kMaxBytes = 512 << 20;
  return ReadFile(path, kMaxBytes);
}

}  // namespace convene::text
