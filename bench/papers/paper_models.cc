#include "bench/papers/paper_models.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "cost/operator_costs.h"
#include "cost/presets.h"
#include "model/family.h"

namespace convene::papers {
namespace {

// From the models' own config.json, as far as shapes need it.
const std::map<std::string, const char*>& Configs() {
  static const std::map<std::string, const char*> configs = {
      {"Mixtral-8x7B", R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
        "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
        "hidden_act": "silu", "tie_word_embeddings": false})"},
      {"Mixtral-8x22B", R"({"model_type": "mixtral", "hidden_size": 6144,
        "intermediate_size": 16384, "num_attention_heads": 48, "num_key_value_heads": 8,
        "num_hidden_layers": 56, "num_local_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 32768, "max_position_embeddings": 65536, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0, "hidden_act": "silu", "tie_word_embeddings": false})"},
      {"DBRX", R"({"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40,
        "max_seq_len": 32768, "vocab_size": 100352, "attn_config": {"clip_qkv": 8, "kv_n_heads": 8,
        "rope_theta": 500000}, "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16,
        "moe_top_k": 4, "moe_normalize_expert_weights": 1}, "tie_word_embeddings": false})"},
      {"Qwen1.5-MoE-A2.7B", R"({"model_type": "qwen2_moe", "hidden_size": 2048,
        "intermediate_size": 5632, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_hidden_layers": 24, "num_experts": 60,
        "num_experts_per_tok": 4, "decoder_sparse_step": 1, "norm_topk_prob": false,
        "vocab_size": 151936, "max_position_embeddings": 8192, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "hidden_act": "silu", "tie_word_embeddings": false,
        "use_sliding_window": false})"},
      {"Qwen2-57B-A14B", R"({"model_type": "qwen2_moe", "hidden_size": 3584,
        "intermediate_size": 18944, "moe_intermediate_size": 2560,
        "shared_expert_intermediate_size": 20480, "num_attention_heads": 28,
        "num_key_value_heads": 4, "num_hidden_layers": 28, "num_experts": 64,
        "num_experts_per_tok": 8, "decoder_sparse_step": 1, "norm_topk_prob": false,
        "vocab_size": 151936, "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "hidden_act": "silu", "tie_word_embeddings": false,
        "use_sliding_window": false})"},
      {"Qwen3-235B-A22B", R"({"model_type": "qwen3_moe", "hidden_size": 4096,
        "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 94, "num_experts": 128,
        "num_experts_per_tok": 8, "decoder_sparse_step": 1, "norm_topk_prob": true,
        "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "hidden_act": "silu",
        "tie_word_embeddings": false, "attention_bias": false, "use_sliding_window": false})"},
      {"DeepSeek-V2", R"({"model_type": "deepseek_v2", "hidden_size": 5120,
        "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_shared_experts": 2,
        "n_routed_experts": 160, "num_experts_per_tok": 6, "n_group": 8, "topk_group": 3,
        "topk_method": "group_limited_greedy", "scoring_func": "softmax",
        "routed_scaling_factor": 16.0, "norm_topk_prob": false, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "num_attention_heads": 128, "num_key_value_heads": 128,
        "num_hidden_layers": 60, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-06, "rope_theta": 10000,
        "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": false})"}};
  return configs;
}

// Places from 0 on, ties at their mean.
std::vector<double> RanksOf(const std::vector<double>& values) {
  std::vector<double> ranks;
  for (const double value : values) {
    double place = -0.5;
    for (const double other : values) place += other < value ? 1 : other == value ? 0.5 : 0;
    ranks.push_back(place);
  }
  return ranks;
}

}  // namespace

model::ModelSpec Model(const std::string& name) {
  const auto found = Configs().find(name);
  CHECK(found != Configs().end(), "no model {}", name);
  Result<model::ModelSpec> spec = model::ModelSpecFromConfig(nlohmann::json::parse(found->second));
  CHECK(spec.ok(), "{}", spec.error().message);
  return *std::move(spec);
}

cost::MachineProfile Machine(const std::string& preset) {
  Result<cost::MachineProfile> machine = cost::Preset(preset);
  CHECK(machine.ok(), "{}", machine.error().message);
  return *std::move(machine);
}

planner::HybridQuestion AskHybrid(const model::ModelSpec& spec, const cost::MachineProfile& machine,
                                  int num_ranks, int batch, int prompt_tokens, int gen_tokens) {
  planner::HybridQuestion question{.spec = spec, .num_ranks = num_ranks};
  question.batch = batch;
  question.prompt_tokens = prompt_tokens;
  question.gen_tokens = gen_tokens;
  question.memory_bytes = static_cast<double>(machine.device->memory_bytes);
  question.upload_bytes_per_second = machine.device->host_bytes_per_second;
  question.price = planner::PriceOn(machine, {});
  question.pass_seconds = [&](double bytes) {
    const auto costs = cost::OperatorCosts::Create(machine, spec);
    CHECK(costs.ok(), "{}", costs.error().message);
    return costs->OtherSeconds(bytes);
  };
  return question;
}

double ErrorOfGain(double predicted, double published) {
  return std::abs(predicted - published) / std::abs(published - 1);
}

double RankCorrelation(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() < 3) return 0;
  const std::vector<double> x = RanksOf(a);
  const std::vector<double> y = RanksOf(b);
  const double mean = (static_cast<double>(a.size()) - 1) / 2;
  double both = 0;
  double of_x = 0;
  double of_y = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    both += (x[i] - mean) * (y[i] - mean);
    of_x += (x[i] - mean) * (x[i] - mean);
    of_y += (y[i] - mean) * (y[i] - mean);
  }
  return of_x > 0 && of_y > 0 ? both / std::sqrt(of_x * of_y) : 0;
}

double Median(std::vector<double> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace convene::papers
