// Any bytes as a file of token ids, .npy or decimal text: an error, or ids that are all there.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/check.h"
#include "cli/npy.h"
#include "cli/token_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace cli = convene::cli;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto ids = cli::IsNpy(bytes) ? cli::ParseNpyTokens(bytes) : cli::ParseTokenText(bytes);
  if (!ids) {
    CHECK(!ids.error().message.empty());
    return 0;
  }
  if (!cli::IsNpy(bytes)) {
    CHECK(2 * ids->size() <= size + 1, "{} ids in {} bytes", ids->size(), size);
    std::string text;
    for (const int32_t id : *ids) {
      CHECK(id >= 0, "{}", id);
      text += std::to_string(id) + " ";
    }
    const auto again = cli::ParseTokenText(text);
    CHECK(again && *again == *ids);
    return 0;
  }
  // Version 1 has a length of its header in two bytes, later ones in four; the rest are elements.
  const size_t length_bytes = data[6] == 1 ? 2 : 4;
  size_t header_bytes = 0;
  for (size_t i = length_bytes; i > 0; --i) header_bytes = header_bytes << 8 | data[7 + i];
  const size_t data_bytes = size - (8 + length_bytes + header_bytes);
  CHECK(data_bytes == 4 * ids->size() || data_bytes == 8 * ids->size(), "{} ids in {} bytes",
        ids->size(), data_bytes);
  const std::string_view header = bytes.substr(8 + length_bytes, header_bytes);
  const size_t shape = header.find("'shape':");
  CHECK(shape != header.npos);
  const size_t digits = std::min(header.find('(', shape), header.size() - 1) + 1;
  CHECK(std::strtoull(std::string(header.substr(digits)).c_str(), nullptr, 10) == ids->size(),
        "{} ids, where the header is {}", ids->size(), header);
  const size_t element_bytes = data_bytes == 4 * ids->size() ? 4 : 8;
  const uint8_t* element = data + size - data_bytes;
  for (const int32_t id : *ids) {
    uint32_t low = 0;
    for (int i = 3; i >= 0; --i) low = low << 8 | element[i];
    CHECK(low == static_cast<uint32_t>(id), "{} instead of {}", id, low);
    element += element_bytes;
  }
  return 0;
}
