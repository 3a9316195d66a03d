#include "cli/inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <vector>

#include "base/environment.h"
#include "checkpoint/checkpoint.h"
#include "engine/loaded_model.h"
#include "hardware/topology.h"
#include "runtime/transformer.h"
#include "weights/load_weights.h"

namespace convene::cli {
namespace {

using model::ModelSpec;
using model::TensorKind;
using nlohmann::ordered_json;

// A directory with weights is opened, and so checked; without, the configuration has to do.
Status ReadModel(const std::string& path, Inspection& inspection) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const bool has_weights = fs::exists(fs::path(path) / "model.safetensors", ignored) ||
                           fs::exists(fs::path(path) / "model.safetensors.index.json", ignored);
  if (!has_weights) {
    Result<ModelSpec> spec = checkpoint::OpenConfig(path);
    if (!spec) return spec.error();
    inspection.spec = *std::move(spec);
    return {};
  }
  const Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::Open(path);
  if (!checkpoint) return checkpoint.error();
  inspection.spec = checkpoint->spec();
  StoredWeights& stored = inspection.stored.emplace();
  stored.num_files = checkpoint->num_files();
  stored.size_bytes = checkpoint->size_bytes();
  for (const model::TensorBinding& binding : inspection.spec.tensors) {
    stored.dtypes.emplace(tensor::Name(checkpoint->View(binding).dtype));
  }
  return {};
}

Status PlanMemory(std::optional<int> context, Inspection& inspection) {
  const ModelSpec& spec = inspection.spec;
  const Result<hardware::AvailableMemory> available = hardware::ReadAvailableMemory();
  if (!available) return available.error();
  inspection.available = *available;
  const Result<std::vector<int>> cpus =
      hardware::CpusForThisRank(LocalRankFromLauncher(), std::nullopt);
  if (!cpus) return cpus.error();
  inspection.num_threads = static_cast<int>(cpus->size());
  const int tokens = context.value_or(std::min(spec.max_positions, engine::kDefaultContext));
  const Result<engine::MemoryPlan> plan = engine::PlanMemory({
      .weights_bytes = weights::PackedSizeBytes(spec, inspection.formats.weights),
      .kv_block_bytes = runtime::Transformer::KvBlockBytes(spec, inspection.formats.kv),
      .activation_bytes = runtime::Transformer::ActivationBytes(
          spec, inspection.formats.activations, engine::LoadOptions().max_step_tokens, tokens,
          inspection.num_threads),
      .context = tokens,
      .contexts_per_sequence = spec.has_encoder() ? 2 : 1,
      .available_bytes = UINT64_MAX,  // the question is what it needs, not whether it fits
      .limited_by = "",
  });
  if (!plan) return plan.error();
  inspection.memory = *plan;
  return {};
}

std::string JsonKey(TensorKind kind) {
  std::string key(model::Name(kind));
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) {
    return c == ' ' ? '_' : static_cast<char>(std::tolower(c));
  });
  return key;
}

}  // namespace

uint64_t Inspection::kv_token_bytes() const {
  return runtime::Transformer::KvBlockBytes(spec, formats.kv) / runtime::kKvBlockTokens;
}

uint64_t Inspection::StoredBytes(model::TensorKind kind, int64_t count) const {
  using kernels::WeightFormat;
  const auto bits = [&](WeightFormat format) {
    switch (format) {
      case WeightFormat::kF32:
        return 32.0;
      case WeightFormat::kBf16:
        return 16.0;
      case WeightFormat::kInt8:
        return 8.0;
      case WeightFormat::kInt4:
        return 4.0 + 8.0 / formats.weights.group;
    }
    return 0.0;
  };
  WeightFormat format = formats.weights.matrices;
  if (kind == TensorKind::kEmbedding) format = formats.weights.embedding();
  if (kind == TensorKind::kHead) format = formats.weights.head();
  if (kind == TensorKind::kRouter || kind == TensorKind::kNorms) format = WeightFormat::kF32;
  return static_cast<uint64_t>(static_cast<double>(count) * bits(format) / 8);
}

uint64_t Inspection::decode_weight_bytes() const {
  return weights::DecodeBytes(spec, formats.weights);
}

Result<Inspection> InspectModel(const std::string& path, std::optional<int> context,
                                const runtime::Formats& formats) {
  Inspection inspection;
  inspection.formats = formats;
  if (Status read = ReadModel(path, inspection); !read) return read.error();
  if (Status planned = PlanMemory(context, inspection); !planned) return planned.error();
  return inspection;
}

ordered_json ToJson(const Inspection& inspection) {
  const ModelSpec& spec = inspection.spec;
  const model::ParameterCounts counts = model::CountParameters(spec);
  ordered_json parameters;
  ordered_json bytes;
  for (int i = 0; i < model::kNumTensorKinds; ++i) {
    const std::string key = JsonKey(static_cast<TensorKind>(i));
    parameters[key] = counts[i];
    bytes[key] = inspection.StoredBytes(static_cast<TensorKind>(i), counts[i]);
  }
  ordered_json flops;
  const model::TokenFlops token = model::FlopsOfToken(spec, inspection.memory.context - 1, true);
  for (const FlopsPart& part : kFlopsParts) flops[part.key] = token.*part.flops;
  flops["total"] = token.total();

  const model::AttentionSpec& attention = spec.layers.front().attention;
  ordered_json json = {{"family", spec.family},
                       {"layers", spec.num_layers()},
                       {"hidden_size", spec.hidden_size},
                       {"vocab_size", spec.vocab_size},
                       {"context", spec.max_positions},
                       {"heads", attention.num_heads},
                       {"kv_heads", attention.num_kv_heads},
                       {"head_dim", attention.head_dim}};
  const auto sparse = std::find_if(spec.layers.begin(), spec.layers.end(),
                                   [](const auto& layer) { return layer.moe.has_value(); });
  if (sparse != spec.layers.end()) {
    json["experts"] = sparse->moe->num_experts;
    json["experts_per_token"] = sparse->moe->top_k;
  }
  json["parameters_total"] = model::TotalParameters(spec);
  json["parameters_activated"] = model::ActivatedParameters(spec);
  json["parameters"] = parameters;
  json["weights_format"] = kernels::Name(inspection.formats.weights.matrices);
  json["bytes"] = bytes;
  json["flops_of_last_token"] = flops;
  json["decode_weight_bytes"] = inspection.decode_weight_bytes();
  if (inspection.stored) {
    json["stored"] = {{"files", inspection.stored->num_files},
                      {"bytes", inspection.stored->size_bytes},
                      {"dtypes", inspection.stored->dtypes}};
  }
  json["memory"] = {{"context", inspection.memory.context},
                    {"threads", inspection.num_threads},
                    {"weights_bytes", inspection.memory.weights_bytes},
                    {"kv_bytes", inspection.memory.kv_bytes},
                    {"kv_bytes_per_token", inspection.kv_token_bytes()},
                    {"working_bytes", inspection.memory.working_bytes},
                    {"needed_bytes", inspection.memory.needed_bytes()},
                    {"available_bytes", inspection.available.bytes}};
  return json;
}

}  // namespace convene::cli
