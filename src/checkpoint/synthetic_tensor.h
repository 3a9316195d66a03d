// What a synthetic checkpoint stores: which tensors, of which numbers, and their bytes. Writes no
// files (synthesize.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/model_spec.h"
#include "tensor/dtype.h"

namespace convene::checkpoint {

// What the elements of a tensor are: `constant`, or random with this standard deviation, but for
// the first element of each row where that is given.
struct Fill {
  float std = 0;
  float constant = 0;
  std::vector<float> first_of_rows = {};  // of each row, or one for all; empty: like the others
  int64_t cols = 0;                       // of a row, where first elements are given
};

// How they are written.
enum class Encoding { kBf16, kF32, kE4m3, kE2m1, kE8m0 };

int BitsOf(Encoding encoding);

struct SyntheticTensor {
  StoredTensor stored;
  Encoding encoding = Encoding::kBf16;
  Fill fill;
  int64_t num_elements = 0;
};

// How a router's rows come to prefer experts: all embeddings have the same number in their first
// element, which a router's first column then weighs (synthesize.h).
struct RouterPreference {
  // By layer of the decoder and expert, the share of the tokens that are to choose it.
  std::vector<std::vector<double>> shares = {};

  bool is_set() const { return !shares.empty(); }
};

// The tensors that hold one binding of a model. All blocks of a quantised one have the same scale:
// the largest of the random numbers, 3.5 standard deviations, becomes the largest element.
std::vector<SyntheticTensor> SyntheticTensors(const model::ModelSpec& spec,
                                              const model::TensorBinding& binding,
                                              float embedding_std,
                                              const RouterPreference& preference = {});

// Puts the first elements of rows into those of `numbers`, which begin at element `first`.
void FillFirstOfRows(const Fill& fill, int64_t first, std::span<tensor::Bf16> numbers);

// Numbers of a tensor as it stores them, in `bytes` or, where they need no change, as they are.
// The count is even where two share a byte.
std::span<const std::byte> Encode(const SyntheticTensor& tensor,
                                  std::span<const tensor::Bf16> numbers,
                                  std::vector<std::byte>& bytes);

}  // namespace convene::checkpoint
