// Any bytes as a safetensors file: the parser must refuse them or return tensors that lie inside.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensors =
      convene::checkpoint::ParseSafetensors(std::as_bytes(std::span(data, size)), size);
  if (!tensors) return 0;
  uint64_t end = tensors->empty() ? size : tensors->front().offset;
  for (const convene::checkpoint::StoredTensor& tensor : *tensors) {
    CHECK(tensor.offset == end, "{} starts at {}, not {}", tensor.name, tensor.offset, end);
    end += tensor.size_bytes;
  }
  CHECK(end == size, "tensors end at {} of {}", end, size);
  return 0;
}
