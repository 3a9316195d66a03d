// Which tensors of a file hold what a TensorBinding means: one, or elements and scales. Reads
// nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_spec.h"
#include "tensor/dtype.h"

namespace convene::checkpoint {

// Blocks of Storage::kFp8Block, and elements with one scale of Storage::kMxfp4.
inline constexpr int kFp8BlockSize = 128;
inline constexpr int kMxfp4BlockSize = 32;

struct StoredPart {
  std::string name;
  const char* dtype;  // as the format spells it; null: F32, F16 or BF16
  std::vector<int64_t> shape;
};

// The elements first, then their scales. Precondition: of kFp8Block two dimensions, of kMxfp4 a
// last dimension that is a multiple of 32.
std::vector<StoredPart> PartsOf(const model::TensorBinding& binding);

// Of the elements; kF32 stands for all plain ones.
tensor::DType ElementType(model::Storage storage);

}  // namespace convene::checkpoint
