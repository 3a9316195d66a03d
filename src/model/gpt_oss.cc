// gpt-oss (OpenAI, 2025; transformers models/gpt_oss): windows in every other layer, attention
// sinks, biases everywhere, clamped SwiGLU, experts in bf16 or MXFP4.
#include <algorithm>
#include <cmath>

#include "base/quote.h"
#include "model/decoder_config.h"
#include "model/decoder_tensors.h"
#include "model/family.h"
#include "model/quantization.h"
#include "model/rope_config.h"

namespace convene::model {
namespace {

constexpr int kMxfp4Columns = 32;  // that share a scale

// What the tensors of all experts have in common: rows of gate and up take turns, and bf16 matrices
// are stored transposed, MXFP4 ones not.
class ExpertBinder {
 public:
  ExpertBinder(ModelSpec& spec, int layer, Storage storage, const std::string& prefix)
      : spec_(spec), layer_(layer), storage_(storage), prefix_(prefix + "experts.") {}

  void Bind() {
    const MoeSpec& moe = *spec_.layers[layer_].moe;
    const int width = moe.intermediate_size;
    const int hidden = spec_.hidden_size;
    for (int expert = 0; expert < moe.num_experts; ++expert) {
      Matrix(TensorRole::kExpertGate, expert, "gate_up_proj", width, hidden, 2, 0);
      Matrix(TensorRole::kExpertUp, expert, "gate_up_proj", width, hidden, 2, 1);
      Matrix(TensorRole::kExpertDown, expert, "down_proj", hidden, width, 1, 0);
      Vector(TensorRole::kExpertGateBias, expert, "gate_up_proj_bias", width, 2, 0);
      Vector(TensorRole::kExpertUpBias, expert, "gate_up_proj_bias", width, 2, 1);
      Vector(TensorRole::kExpertDownBias, expert, "down_proj_bias", hidden, 1, 0);
    }
  }

 private:
  void Matrix(TensorRole role, int expert, std::string_view name, int64_t rows, int64_t cols,
              int row_step, int row_offset) {
    const bool transposed = storage_ == Storage::kPlain;
    const int64_t experts = spec_.layers[layer_].moe->num_experts;
    const int64_t outputs = rows * row_step;
    spec_.tensors.push_back({
        .role = role,
        .layer = layer_,
        .expert = expert,
        .name = fmt::format("{}{}", prefix_, name),
        .stored_shape = transposed ? std::vector<int64_t>{experts, cols, outputs}
                                   : std::vector<int64_t>{experts, outputs, cols},
        .rows = rows,
        .cols = cols,
        .first_row = expert * (transposed ? cols : outputs),
        .transposed = transposed,
        .row_step = row_step,
        .row_offset = row_offset,
        .storage = storage_,
    });
  }
  // A row of the stored matrix (experts, outputs).
  void Vector(TensorRole role, int expert, std::string_view name, int64_t size, int row_step,
              int row_offset) {
    spec_.tensors.push_back({
        .role = role,
        .layer = layer_,
        .expert = expert,
        .name = fmt::format("{}{}", prefix_, name),
        .stored_shape = {spec_.layers[layer_].moe->num_experts, size * row_step},
        .rows = size,
        .cols = 1,
        .first_row = expert,
        .transposed = true,
        .row_step = row_step,
        .row_offset = row_offset,
    });
  }

  ModelSpec& spec_;
  int layer_;
  Storage storage_;
  std::string prefix_;
};

// YaRN also where the configuration says nothing of RoPE.
void ReadDefaultRope(ConfigFields& config, ModelSpec& spec) {
  if (!config.Object("rope_scaling").empty() || !config.Object("rope_parameters").empty()) return;
  RopeSpec& rope = spec.rope;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 32;
  rope.original_max_positions = 4096;
  rope.truncate = false;
  rope.attention_factor = 0.1 * std::log(rope.factor) + 1;
  spec.max_positions = DeclaredContext(rope, spec.max_positions);
}

void ReadGptOssWindows(ConfigFields& config, std::vector<LayerSpec>& layers) {
  const std::vector<std::string> types = config.Texts("layer_types");
  if (config.Has("layer_types") && types.size() != layers.size()) {
    config.Fail(fmt::format("layer_types has {} entries, but there are {} layers", types.size(),
                            layers.size()));
    return;
  }
  const bool any_slides =
      types.empty() || std::find(types.begin(), types.end(), "sliding_attention") != types.end();
  const int window = any_slides ? ReadWindow(config, 128) : 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    bool slides = layer % 2 == 0;
    if (!types.empty()) {
      slides = types[layer] == "sliding_attention";
      if (!slides && types[layer] != "full_attention") {
        config.Fail(fmt::format(
            "layer_types has an entry {}; it can be sliding_attention or full_attention",
            Quote(types[layer])));
      }
    }
    if (slides) layers[layer].attention.window = window;
  }
}

}  // namespace

Result<ModelSpec> ReadGptOss(ConfigFields& config) {
  DecoderConfig decoder = ReadDecoder(config, {.vocab_size = 201088,
                                               .hidden_size = 2880,
                                               .num_layers = 36,
                                               .num_heads = 64,
                                               .num_kv_heads = 8,
                                               .head_dim = 64,
                                               .max_positions = 131072,
                                               .norm_epsilon = 1e-5,
                                               .rope_theta = 150000});
  ModelSpec& spec = decoder.spec;
  ReadDefaultRope(config, spec);
  AttentionSpec& attention = decoder.attention;
  attention.qkv_bias = config.Boolean("attention_bias", true);
  attention.output_bias = attention.qkv_bias;
  attention.sinks = true;
  // The softmax is over the chosen experts' logits, which is that over all divided by their sum.
  const MoeSpec moe = {
      .num_experts = config.Integer({"num_local_experts", "num_experts"}, 128, kExpertCount),
      .top_k = config.Integer("num_experts_per_tok", 4, kExpertCount),
      .intermediate_size = config.Integer("intermediate_size", 2880, kIntermediate),
      .activation = {.kind = Activation::kClampedSwiglu,
                     .limit = static_cast<float>(config.Number("swiglu_limit", 7, kClip)),
                     .alpha = static_cast<float>(config.Number("swiglu_alpha", 1.702, kClip))},
      .expert_bias = true,
      .router_bias = true,
      .router_norm = RouterNorm::kSum,
  };
  CheckExperts(config, moe, decoder.num_layers);

  const Storage storage = ReadStorage(config);
  if (storage == Storage::kMxfp4 &&
      (spec.hidden_size % kMxfp4Columns != 0 || moe.intermediate_size % kMxfp4Columns != 0)) {
    config.Fail(fmt::format(
        "hidden_size {} and intermediate_size {} of an MXFP4 model must be multiples of {}",
        spec.hidden_size, moe.intermediate_size, kMxfp4Columns));
  }
  spec.layers.assign(decoder.num_layers, {.attention = attention, .moe = moe});
  ReadGptOssWindows(config, spec.layers);
  if (!config.ok()) return config.error();
  BindDecoder(spec,
              {.router = "router",
               .bind_experts = [storage](ModelSpec& bound, int layer, const std::string& prefix) {
                 ExpertBinder(bound, layer, storage, prefix).Bind();
               }});
  return std::move(spec);
}

}  // namespace convene::model
