#include "checkpoint/stored_parts.h"

#include "base/check.h"

namespace convene::checkpoint {
namespace {

int64_t Blocks(int64_t elements, int64_t block) { return (elements + block - 1) / block; }

}  // namespace

std::vector<StoredPart> PartsOf(const model::TensorBinding& binding) {
  const std::vector<int64_t>& shape = binding.stored_shape;
  switch (binding.storage) {
    case model::Storage::kPlain:
      break;
    case model::Storage::kFp8Block:
      CHECK(shape.size() == 2, "{}: FP8 of {} dimensions", binding.name, shape.size());
      return {{binding.name, "F8_E4M3", shape},
              {binding.name + "_scale_inv",
               nullptr,
               {Blocks(shape[0], kFp8BlockSize), Blocks(shape[1], kFp8BlockSize)}}};
    case model::Storage::kMxfp4: {
      CHECK(shape.back() % kMxfp4BlockSize == 0, "{}: MXFP4 of {} columns", binding.name,
            shape.back());
      std::vector<int64_t> scales = shape;
      scales.back() /= kMxfp4BlockSize;
      std::vector<int64_t> blocks = scales;
      blocks.push_back(kMxfp4BlockSize / 2);
      return {{binding.name + "_blocks", "U8", std::move(blocks)},
              {binding.name + "_scales", "U8", std::move(scales)}};
    }
  }
  return {{binding.name, nullptr, shape}};
}

tensor::DType ElementType(model::Storage storage) {
  switch (storage) {
    case model::Storage::kPlain:
      return tensor::DType::kF32;
    case model::Storage::kFp8Block:
      return tensor::DType::kE4m3;
    case model::Storage::kMxfp4:
      return tensor::DType::kE2m1;
  }
  return tensor::DType::kF32;
}

}  // namespace convene::checkpoint
