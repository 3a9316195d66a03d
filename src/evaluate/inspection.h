// What can be said about a model without loading it: its spec, its size, what a run here would
// need. How that is shown is cli/inspect.cc.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "base/result.h"
#include "engine/memory_plan.h"
#include "hardware/memory_status.h"
#include "model/model_size.h"
#include "model/model_spec.h"
#include "runtime/formats.h"

namespace convene::evaluate {

struct StoredWeights {
  std::set<std::string> dtypes = {};  // "BF16"; of packed weights their format, "int4"
  int num_files = 0;
  uint64_t size_bytes = 0;
};

struct Inspection {
  model::ModelSpec spec;
  std::optional<StoredWeights> stored;  // unset: shapes alone
  runtime::Formats formats;
  int num_threads = 0;  // that a run here would have by default
  hardware::AvailableMemory available;
  uint64_t taken_bytes = 0;   // of a budget, as memory::Tier's
  engine::MemoryPlan memory;  // of one sequence
  // Where that is more than there is: what it needs with experts on a disk, unless that is too
  // much.
  std::optional<engine::MemoryPlan> paged;
  int num_pages = 0;  // experts, of which `paged` has room for some

  // About what `count` weights of a kind take in memory: without padding and the rows' scales.
  uint64_t StoredBytes(model::TensorKind kind, int64_t count) const;
  uint64_t kv_token_bytes() const;       // of the cache, per token of a decoder
  uint64_t cross_token_bytes() const;    // of the cache, per token of an encoder's input
  uint64_t decode_weight_bytes() const;  // read by a decode step of one sequence
};

// The architecture of a model directory, with or without weights, or of a bare config.json. Where
// the configuration ties head and embedding, the weights have the last word: a stored head that
// differs unties them, as in a run. Reads no others. Errors: of the configuration and, where they
// are asked, of the weights.
Result<model::ModelSpec> SpecAsLoaded(const std::string& path);

// `path` is a model directory, packed or not, whose weights are then checked, or one without
// weights, or a bare config.json. `context`: tokens of the sequence for which memory is counted;
// unset: the default of `convene run`. `memory_budget` in bytes; unset: what is free. Errors: of
// the checkpoint; a machine that does not tell its memory.
Result<Inspection> InspectModel(const std::string& path, std::optional<int> context,
                                const runtime::Formats& formats,
                                std::optional<uint64_t> memory_budget = {});

nlohmann::ordered_json ToJson(const Inspection& inspection);

// The parts of a token's work, for people and for programs.
struct FlopsPart {
  const char* name;
  const char* key;
  double model::TokenFlops::*flops;
};
inline constexpr FlopsPart kFlopsParts[] = {
    {"attention projections", "attention_projections", &model::TokenFlops::attention_projections},
    {"attention scores", "attention_scores", &model::TokenFlops::attention_scores},
    {"cross attention", "cross_attention", &model::TokenFlops::cross_attention},
    {"router", "router", &model::TokenFlops::router},
    {"experts", "experts", &model::TokenFlops::experts},
    {"shared experts", "shared_experts", &model::TokenFlops::shared_experts},
    {"dense FFN", "dense_ffn", &model::TokenFlops::dense_ffn},
    {"head", "head", &model::TokenFlops::head},
};

}  // namespace convene::evaluate
