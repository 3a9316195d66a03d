// Any bytes as a safetensors file: the parser must refuse them or return tensors that lie inside,
// one behind the other, each as large as its type and shape say.
//
// An input is a file's header or beginning (safetensors_file.h); behind its last newline may stand,
// in decimal digits, how many bytes follow.
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "checkpoint/safetensors.h"
#include "safetensors_file.h"

namespace {

using convene::checkpoint::StoredTensor;
using Tensors = std::vector<StoredTensor>;

// `first_byte` is where the data begins.
void CheckTensors(const Tensors& tensors, uint64_t first_byte, uint64_t file_size) {
  uint64_t end = first_byte;
  std::set<std::string_view> names;
  for (const StoredTensor& tensor : tensors) {
    CHECK(tensor.offset == end, "{} starts at {}, not {}", tensor.name, tensor.offset, end);
    end += tensor.size_bytes;
    CHECK(names.insert(tensor.name).second, "{} twice", tensor.name);
    // In floating point nothing wraps around.
    long double bits = convene::checkpoint::DtypeBits(tensor.dtype);
    for (const int64_t dimension : tensor.shape) {
      CHECK(dimension >= 0);
      bits *= static_cast<long double>(dimension);
    }
    CHECK(bits == 8.0L * static_cast<long double>(tensor.size_bytes), "{} has {} bytes",
          tensor.name, tensor.size_bytes);
  }
  CHECK(end == file_size, "tensors end at {} of {}", end, file_size);
}

// What is read is written and read as the same again.
void CheckPrefix(const Tensors& tensors) {
  const std::string prefix = convene::checkpoint::SafetensorsPrefix(tensors);
  uint64_t file_size = prefix.size();
  for (const StoredTensor& tensor : tensors) file_size += tensor.size_bytes;
  const auto again =
      convene::checkpoint::ParseSafetensors(std::as_bytes(std::span(prefix)), file_size);
  CHECK(again.ok(), "{}", again.error().message);
  CHECK(again->size() == tensors.size());
  CheckTensors(*again, prefix.size(), file_size);
}

// Splits the number behind the last newline off `input`; 0, and all of it left, where there is
// none.
uint64_t TakeNumber(std::string_view& input) {
  const size_t newline = input.rfind('\n');
  if (newline == input.npos) return 0;
  const std::string_view digits = input.substr(newline + 1);
  uint64_t number = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || rest != digits.data() + digits.size()) return 0;
  input = input.substr(0, newline);
  return number;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const uint64_t num_bytes = TakeNumber(input);
  const SafetensorsFile file = MakeSafetensorsFile(input, num_bytes);
  const auto tensors = convene::checkpoint::ParseSafetensors(file.prefix, file.size);
  if (!tensors) return 0;
  uint64_t length = 0;
  CHECK(file.prefix.size() >= sizeof(length));
  std::memcpy(&length, file.prefix.data(), sizeof(length));
  CheckTensors(*tensors, sizeof(length) + length, file.size);
  CheckPrefix(*tensors);
  return 0;
}
