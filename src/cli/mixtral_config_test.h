// The configuration of a model that is larger than those of the tests, for plans without weights.
#pragma once

namespace convene::cli {

// 5.4 GiB of experts with weights in bf16.
inline constexpr char kTwoLayersOfMixtral[] = R"({"model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

}  // namespace convene::cli
