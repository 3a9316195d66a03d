// Rotary position embedding (Su et al., RoFormer) with the context extensions of Hugging Face
// configurations. Gives frequencies; the rotation itself is a kernel.
#pragma once

#include <vector>

namespace convene::model {

enum class RopeScaling { kNone, kLinear, kDynamic, kYarn, kLlama3 };

struct RopeSpec {
  double theta = 10000.0;
  int rotary_dim =
      0;  // leading dimensions of each head that are rotated (halves layout); even, 0: none
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int original_max_positions = 0;  // the context before scaling, in tokens
  // YaRN (Peng et al., 2023):
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 1.0;  // multiplies cos and sin
  // DeepSeek, of any kind of scaling: multiplies the scores, by the mscale of all dimensions.
  double score_factor = 1.0;
  bool truncate = true;  // correction range rounded to whole dimensions
  // llama3:
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;

  // True where the frequencies depend on how long the sequence is (dynamic NTK).
  bool DependsOnLength() const { return scaling == RopeScaling::kDynamic; }
};

// Inverse frequencies (rotary_dim / 2) for a sequence of `length` tokens. Only dynamic scaling
// looks at `length`: that of the whole prompt for the prompt's positions, position + 1 for a
// position generated later, so that the result depends on nothing but the sequence.
std::vector<float> InverseFrequencies(const RopeSpec& spec, int length);

}  // namespace convene::model
