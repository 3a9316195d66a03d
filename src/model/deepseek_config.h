// What DeepSeek-V2 and V3 have in common: latent attention, leading dense layers, shared experts
// and the names of their tensors. Their routers are their own.
#pragma once

#include "model/config_fields.h"
#include "model/model_spec.h"

namespace convene::model {

// Used where config.json is silent; transformers' defaults.
struct DeepseekDefaults {
  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int intermediate_size = 0;      // of dense layers
  int moe_intermediate_size = 0;  // of an expert
  int num_shared_experts = 0;
  int num_dense_layers = 0;  // the first ones
  int max_positions = 0;
  bool interleaved_rope = true;  // V3 has a field for it
};

// The model without `moe`'s router, which is a family's: `moe` has num_experts, top_k and what the
// gate does with them. Mistakes are noted in `config`.
Result<ModelSpec> ReadDeepseek(ConfigFields& config, const DeepseekDefaults& defaults, MoeSpec moe);

// n_routed_experts, or its `alias`. Absent, they are `fallback`; null, there are none, and all
// layers are dense.
int ReadRoutedExperts(ConfigFields& config, std::string_view alias, int fallback);

// Groups of experts of which a router chooses among the best; 1 and 1 where there are none. Where
// there are no experts, no groups are read.
void ReadExpertGroups(ConfigFields& config, int num_expert_groups, int top_expert_groups,
                      MoeSpec& moe);

// Any other text in a field that is there is a mistake.
void CheckText(ConfigFields& config, std::string_view field, std::string_view expected);

}  // namespace convene::model
