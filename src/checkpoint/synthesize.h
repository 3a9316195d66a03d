// Writes a checkpoint of a real model's shape with random weights, for performance work: it loads
// and routes like the real one, and says nothing of value.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace convene::checkpoint {

struct SynthesisOptions {
  int num_layers = 0;  // 0: as many as the configuration says
  uint64_t seed = 0;
  int num_threads = 1;
  uint64_t max_shard_bytes = uint64_t{4} << 30;
  // Standard deviation of the embedding. Matrices keep the scale of their input and norms are one,
  // so every layer adds vectors of size about one to hidden states of this size. Where the two are
  // alike (plain initialisation), what all tokens have in common (attention averages over the
  // context) soon outweighs what sets them apart, and all tokens choose the same experts; where the
  // embedding is far larger, hidden states stay as different as the tokens, and routing is close to
  // uniform.
  float embedding_std = 1024.0f;
  // By layer of the decoder and expert, the share of the tokens that are to choose it, about; of a
  // layer without experts nothing. Empty: experts are alike.
  std::vector<std::vector<double>> router_shares = {};
};

struct SynthesisSummary {
  int64_t num_tensors = 0;
  int num_shards = 0;
  uint64_t size_bytes = 0;  // of the weights
};

// Called from the calling thread with bytes written so far and in total; may be empty.
using SynthesisProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// Writes weights under the family's own tensor names, in bf16 or where the configuration says so
// FP8 or MXFP4, in shards with an index, and last the config.json of `config_path` (a file or a
// model directory) with its number of layers replaced: a directory without config.json is not
// complete. The bytes depend on the configuration, the seed, the embedding's scale and the routers'
// shares alone. Memory use is constant. `directory` must not exist or be empty. Errors: a
// configuration that cannot be used, shares of other layers or experts, a disk without the room
// (checked first) or that fails; what was written is then removed.
Result<SynthesisSummary> Synthesize(const std::string& config_path, const std::string& directory,
                                    const SynthesisOptions& options,
                                    const SynthesisProgress& progress);

}  // namespace convene::checkpoint
