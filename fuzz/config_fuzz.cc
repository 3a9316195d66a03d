// Any bytes as a config.json, a generation_config.json and a shard index: each must be refused or
// give something consistent, without large allocations.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/model_files.h"
#include "model/family.h"
#include "model/model_size.h"
#include "model/rope.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(convene::checkpoint::ParseShardIndex(text));
  const auto config = convene::ParseJson(text);
  if (!config) return 0;
  static_cast<void>(convene::checkpoint::ReadGenerationConfig(*config, *config));

  const auto spec = convene::model::ModelSpecFromConfig(*config);
  if (!spec) return 0;
  CHECK(!spec->layers.empty() && !spec->tensors.empty());
  for (const convene::model::TensorBinding& tensor : spec->tensors) {
    CHECK(tensor.rows > 0 && tensor.cols > 0 && tensor.first_row >= 0, "{}", tensor.name);
    // The stored tensor as a matrix; a vector is one column.
    const int64_t cols = tensor.stored_shape.size() == 1 ? 1 : tensor.stored_shape.back();
    int64_t rows = 1;
    for (const int64_t dimension : tensor.stored_shape) rows *= dimension;
    rows /= cols;
    const int64_t outputs = tensor.rows * tensor.row_step;
    const int64_t block_rows = tensor.transposed ? tensor.cols : outputs;
    CHECK(tensor.first_row + block_rows <= rows, "{}", tensor.name);
    CHECK((tensor.transposed ? outputs : tensor.cols) <= cols, "{}", tensor.name);
    CHECK(tensor.row_offset >= 0 && tensor.row_offset < tensor.row_step, "{}", tensor.name);
  }
  CHECK(convene::model::ActivatedParameters(*spec) <= convene::model::TotalParameters(*spec));
  const int last = spec->max_positions - 1;
  CHECK(convene::model::FlopsOfToken(*spec, last, true).total() > 0);
  CHECK(convene::model::AbsorbedScoreFlops(*spec, last) > 0);
  CHECK(convene::model::FlopsOfInput(*spec, last).total() >= 0);
  CHECK(convene::model::KvElementsPerToken(*spec) > 0);
  const auto frequencies = convene::model::InverseFrequencies(spec->rope, spec->max_positions);
  CHECK(static_cast<int>(frequencies.size()) * 2 == spec->rope.rotary_dim);
  return 0;
}
