#include "evaluate/inspection.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/is_there.h"
#include "base/message.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "device/cpu/cpu_device.h"
#include "engine/model_source.h"
#include "engine/paged_memory.h"
#include "engine/rank_options.h"
#include "hardware/topology.h"
#include "memory/ledger.h"
#include "weights/load_weights.h"
#include "weights/packed_directory.h"
#include "weights/page_index.h"

namespace convene::evaluate {
namespace {

using model::ModelSpec;
using model::TensorKind;
using nlohmann::ordered_json;

bool HasWeights(const std::string& path) {
  namespace fs = std::filesystem;
  return weights::IsPackedDirectory(path) || IsThere(fs::path(path) / "model.safetensors") ||
         IsThere(fs::path(path) / "model.safetensors.index.json");
}

StoredWeights StoredOf(const checkpoint::Checkpoint& checkpoint) {
  StoredWeights stored{.num_files = checkpoint.num_files(), .size_bytes = checkpoint.size_bytes()};
  for (const model::TensorBinding& binding : checkpoint.spec().tensors) {
    stored.dtypes.emplace(tensor::Name(checkpoint.View(binding).dtype));
  }
  return stored;
}

StoredWeights StoredOf(const weights::PackedDirectory& packed) {
  return {.dtypes = {std::string(kernels::Name(packed.formats.matrices))},
          .num_files = 1,
          .size_bytes = packed.file.bytes().size()};
}

// A directory with weights is opened, and so checked; without, the configuration has to do, and
// there is no source. Both are read, as in a run.
Result<std::optional<engine::ModelSource>> ReadModel(const std::string& path,
                                                     Inspection& inspection) {
  Result<ModelSpec> spec = checkpoint::OpenConfig(path);
  if (!spec) return spec.error();
  inspection.spec = *std::move(spec);
  if (!HasWeights(path)) return std::optional<engine::ModelSource>();
  Result<engine::ModelSource> source = engine::ModelSource::Open(path);
  if (!source) return source.error();
  // The weights have the last word.
  const bool is_tied = source->spec().tied_embeddings;
  if (is_tied != inspection.spec.tied_embeddings) inspection.spec = source->spec();
  inspection.stored =
      source->packed() != nullptr ? StoredOf(*source->packed()) : StoredOf(*source->checkpoint());
  return std::optional(*std::move(source));
}

// What it needs where not all experts have room.
void PlanPages(const engine::LoadOptions& options, Inspection& inspection) {
  const ModelSpec& spec = inspection.spec;
  inspection.num_pages = weights::PagedSizesOf(spec, inspection.formats.weights).num_pages;
  if (inspection.num_pages == 0) return;
  memory::Ledger ledger(memory::Tier{.budget_bytes = inspection.available.bytes,
                                     .limited_by = inspection.available.limited_by,
                                     .taken_bytes = inspection.taken_bytes});
  const Result<engine::MemoryPlan> plan = engine::PlanPagedMemoryOf(
      device::CpuBytes(), spec, options, inspection.formats, inspection.num_threads, ledger);
  if (plan) inspection.paged = *plan;
}

Status PlanMemory(std::optional<int> context, std::optional<uint64_t> memory_budget,
                  Inspection& inspection) {
  const ModelSpec& spec = inspection.spec;
  const Result<hardware::AvailableMemory> available = hardware::ReadAvailableMemory();
  if (!available) return available.error();
  // As a run has it, of whose budget the program itself takes a part.
  memory::Tier tier{.budget_bytes = available->bytes, .limited_by = available->limited_by};
  engine::LimitTo(memory_budget, &tier);
  inspection.available = {.bytes = tier.budget_bytes, .limited_by = tier.limited_by};
  inspection.taken_bytes = tier.taken_bytes;
  const Result<std::vector<int>> cpus =
      hardware::CpusForThisRank(LocalRankFromLauncher(), std::nullopt);
  if (!cpus) return cpus.error();
  inspection.num_threads = static_cast<int>(cpus->size());
  // The question is what it needs, not whether it fits.
  memory::Ledger unlimited;
  const Result<engine::MemoryPlan> plan =
      engine::PlanMemoryOf(device::CpuBytes(), spec, {.context = context}, inspection.formats,
                           inspection.num_threads, unlimited);
  if (!plan) return plan.error();
  inspection.memory = *plan;
  if (plan->needed_bytes() > inspection.available.bytes) {
    PlanPages({.context = context, .memory_budget = memory_budget}, inspection);
  }
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
  return device::CpuBytes().of_kv_block(spec, formats.kv) / device::kKvBlockTokens;
}

uint64_t Inspection::cross_token_bytes() const {
  // Blocks of the same shape as those of the decoder's own keys and values.
  return spec.has_encoder() ? kv_token_bytes() : 0;
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

Result<ModelSpec> SpecAsLoaded(const std::string& path) {
  Result<ModelSpec> spec = checkpoint::OpenConfig(path);
  if (!spec || !spec->tied_embeddings || !HasWeights(path)) return spec;
  const Result<engine::ModelSource> source = engine::ModelSource::Open(path);
  if (source) return source->spec();
  // Shapes are known without them: somebody may plan for another machine.
  PrintNote(
      "note: whether the head is tied is as config.json says, since the weights of {} cannot "
      "be opened: {}\n",
      path, source.error().message);
  return spec;
}

Result<Inspection> InspectModel(const std::string& path, std::optional<int> context,
                                const runtime::Formats& formats,
                                std::optional<uint64_t> memory_budget) {
  Inspection inspection;
  inspection.formats = formats;
  // Open until memory is planned, as in a run: what a program knows of ten thousands of tensors is
  // a part of the budget.
  const auto source = ReadModel(path, inspection);
  if (!source) return source.error();
  if (Status planned = PlanMemory(context, memory_budget, inspection); !planned)
    return planned.error();
  return inspection;
}

namespace {

ordered_json AttentionToJson(const model::AttentionSpec& attention) {
  ordered_json json = {{"heads", attention.num_heads}};
  if (!attention.latent) json["kv_heads"] = attention.num_kv_heads;
  json["head_dim"] = attention.head_dim;
  if (attention.latent) {
    json["latent"] = {{"query_rank", attention.latent->query_rank},
                      {"kv_rank", attention.latent->kv_rank},
                      {"rope_dim", attention.latent->rope_dim},
                      {"value_dim", attention.value_dim}};
  }
  if (attention.sinks) json["sinks"] = true;
  return json;
}

ordered_json ExpertsToJson(const model::MoeSpec& moe) {
  ordered_json json = {{"experts", moe.num_experts},
                       {"experts_per_token", moe.top_k},
                       {"expert_width", moe.intermediate_size}};
  if (moe.num_expert_groups > 1) {
    json["expert_groups"] = moe.num_expert_groups;
    json["groups_per_token"] = moe.top_expert_groups;
  }
  json["router"] = moe.score == model::RouterScore::kSigmoid ? "sigmoid" : "softmax";
  if (moe.shared_intermediate_size > 0) json["shared_expert_width"] = moe.shared_intermediate_size;
  return json;
}

int64_t NumSparse(const std::vector<model::LayerSpec>& layers) {
  return std::ranges::count_if(layers, [](const auto& layer) { return layer.moe.has_value(); });
}

ordered_json SpecToJson(const ModelSpec& spec) {
  ordered_json json = {{"family", spec.family},
                       {"layers", spec.num_layers()},
                       {"sparse_layers", NumSparse(spec.layers)}};
  if (spec.has_encoder()) {
    json["encoder_layers"] = spec.encoder_layers.size();
    json["encoder_sparse_layers"] = NumSparse(spec.encoder_layers);
  }
  json["hidden_size"] = spec.hidden_size;
  json["vocab_size"] = spec.vocab_size;
  json["context"] = spec.max_positions;
  json.update(AttentionToJson(spec.layers.front().attention));
  for (const auto* layers : {&spec.encoder_layers, &spec.layers}) {
    for (const model::LayerSpec& layer : *layers) {
      if (layer.moe) json.update(ExpertsToJson(*layer.moe));
    }
  }
  return json;
}

ordered_json FlopsToJson(const model::TokenFlops& flops, double tokens) {
  ordered_json json;
  for (const FlopsPart& part : kFlopsParts) json[part.key] = flops.*part.flops / tokens;
  json["total"] = flops.total() / tokens;
  return json;
}

}  // namespace

ordered_json ToJson(const Inspection& inspection) {
  const ModelSpec& spec = inspection.spec;
  const bool has_encoder = spec.has_encoder();
  const int context = inspection.memory.context;
  const model::ParameterCounts counts = model::CountParameters(spec);
  ordered_json parameters;
  ordered_json bytes;
  for (int i = 0; i < model::kNumTensorKinds; ++i) {
    const std::string key = JsonKey(static_cast<TensorKind>(i));
    parameters[key] = counts[i];
    bytes[key] = inspection.StoredBytes(static_cast<TensorKind>(i), counts[i]);
  }
  ordered_json json = SpecToJson(spec);
  json["parameters_total"] = model::TotalParameters(spec);
  json["parameters_activated"] = model::ActivatedParameters(spec);
  if (has_encoder) {
    const model::StackParameters encoder = model::EncoderParameters(spec);
    json["encoder_parameters_total"] = encoder.total;
    json["encoder_parameters_activated"] = encoder.activated;
  }
  json["parameters"] = parameters;
  json["weights_format"] = kernels::Name(inspection.formats.weights.matrices);
  json["bytes"] = bytes;
  const int input_length = has_encoder ? context : 0;
  json["flops_of_last_token"] =
      FlopsToJson(model::FlopsOfToken(spec, context - 1, true, input_length), 1);
  if (spec.layers.front().attention.latent) {
    json["absorbed_score_flops_of_last_token"] = model::AbsorbedScoreFlops(spec, context - 1);
  }
  if (has_encoder) {
    json["flops_per_input_token"] = FlopsToJson(model::FlopsOfInput(spec, context), context);
  }
  json["decode_weight_bytes"] = inspection.decode_weight_bytes();
  if (inspection.stored) {
    json["stored"] = {{"files", inspection.stored->num_files},
                      {"bytes", inspection.stored->size_bytes},
                      {"dtypes", inspection.stored->dtypes}};
  }
  json["memory"] = {{"context", context},
                    {"threads", inspection.num_threads},
                    {"weights_bytes", inspection.memory.weights_bytes()},
                    {"kv_bytes", inspection.memory.kv_bytes()},
                    {"kv_bytes_per_token", inspection.kv_token_bytes()}};
  if (has_encoder) json["memory"]["kv_bytes_per_input_token"] = inspection.cross_token_bytes();
  json["memory"].update({{"working_bytes", inspection.memory.working_bytes()},
                         {"needed_bytes", inspection.memory.needed_bytes()},
                         {"available_bytes", inspection.available.bytes}});
  if (inspection.paged) {
    json["paged"] = {{"experts", inspection.num_pages},
                     {"experts_in_memory", inspection.paged->num_page_buffers},
                     {"needed_bytes", inspection.paged->needed_bytes()}};
  }
  return json;
}

}  // namespace convene::evaluate
