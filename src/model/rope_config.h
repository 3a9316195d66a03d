// RoPE as Hugging Face configurations spell it, old (rope_theta, rope_scaling) and new
// (rope_parameters). What the parameters do is rope.h.
#pragma once

#include "model/config_fields.h"
#include "model/rope.h"

namespace convene::model {

struct RopeDefaults {
  double theta = 10000.0;  // where the configuration has none
  int head_dim = 0;        // all of it is rotated
  int max_positions = 0;   // max_position_embeddings
};

// The rules of transformers (docs/families.md, "Where the parameters come from"). Mistakes are
// noted in `config`.
RopeSpec ReadRope(ConfigFields& config, const RopeDefaults& defaults);

// The longest context that the configuration declares, in tokens: `max_positions`, stretched where
// the scaling works beyond it (linear and dynamic: by the factor; YaRN: the original context times
// the factor, if that is more).
int DeclaredContext(const RopeSpec& rope, int max_positions);

}  // namespace convene::model
