// Any bytes as a packed directory: it must be refused, or its file be long enough for all that
// MapWeights takes from it.
//
// An input has parts with zero bytes between: config.json, convene.json, in decimal digits how many
// bytes follow the last part in convene.safetensors, and its header or beginning
// (safetensors_file.h).
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "memory/page_reader.h"
#include "model/family.h"
#include "safetensors_file.h"
#include "take_part.h"
#include "weights/named_weights.h"
#include "weights/packed_directory.h"
#include "weights/share.h"
#include "weights/weight_layout.h"

namespace {

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
  const auto parts = convene::weights::ParsePackedParts(*json);
  if (!parts) return 0;
  const auto stored = convene::weights::LocalSpec(*spec, *parts, *formats);
  if (!stored) return 0;
  const std::optional<uint64_t> num_bytes = NumberIn(TakePart(input));
  if (!num_bytes) return 0;
  const SafetensorsFile file = MakeSafetensorsFile(input, *num_bytes);
  const auto tensors =
      convene::weights::FindPackedWeights(*stored, *formats, file.prefix, file.size, *parts);
  if (!tensors) return 0;
  convene::weights::ModelWeights weights;
  convene::weights::LayOut(*stored, *formats, nullptr, &weights, *parts);
  uint64_t bytes = 0;
  for (const auto& named : convene::weights::Matrices(weights)) {
    bytes += named.matrix->size_bytes();
    if (named.ends_page) bytes = convene::memory::DirectBytes(bytes);
  }
  const uint64_t matrix_bytes = bytes;
  for (const auto& named : convene::weights::Vectors(weights, *parts))
    bytes += named.size * sizeof(float);
  // A checksum for each tensor before.
  bytes += (tensors->size() - 1) * sizeof(uint64_t);
  const uint64_t first_byte = tensors->front().offset;
  CHECK(first_byte % convene::memory::kDirectBlockBytes == 0 && first_byte <= file.size, "{} of {}",
        first_byte, file.size);
  CHECK(matrix_bytes > 0 && bytes == file.size - first_byte, "{} bytes of {} behind {}", bytes,
        file.size, first_byte);
  CHECK(tensors->back().offset + tensors->back().size_bytes == file.size);
  return 0;
}
