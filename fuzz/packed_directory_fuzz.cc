// Any bytes as a packed directory: it must be refused, or its file be long enough for all that
// MapWeights takes from it.
//
// An input is what its files hold, with zero bytes between: config.json, convene.json, the size of
// convene.safetensors in decimal digits, and the file's beginning.
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "model/family.h"
#include "weights/packed_directory.h"
#include "weights/weight_layout.h"

namespace {

// Takes the part of `input` before its first zero byte.
std::string_view TakePart(std::string_view& input) {
  const size_t size = input.find('\0');
  const std::string_view part = input.substr(0, size);
  input.remove_prefix(size == input.npos ? input.size() : size + 1);
  return part;
}

std::optional<uint64_t> NumberIn(std::string_view text) {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto config = convene::ParseJson(TakePart(input));
  if (!config) return 0;
  auto spec = convene::model::ModelSpecFromConfig(*config);
  if (!spec) return 0;
  const auto json = convene::ParseJson(TakePart(input));
  if (!json) return 0;
  const auto formats = convene::weights::ParsePackedFormats(*json, &*spec);
  if (!formats) return 0;
  const std::optional<uint64_t> file_size = NumberIn(TakePart(input));
  if (!file_size || *file_size < input.size()) return 0;

  const auto first_byte = convene::weights::FindPackedWeights(
      *spec, *formats, std::as_bytes(std::span(input)), *file_size);
  if (!first_byte) return 0;
  convene::weights::ModelWeights weights;
  const uint64_t matrix_bytes = convene::weights::LayOut(*spec, *formats, nullptr, &weights);
  CHECK(*first_byte % 64 == 0 && *first_byte <= *file_size);
  CHECK(matrix_bytes > 0 && matrix_bytes <= *file_size - *first_byte);
  return 0;
}
