// What a configuration may say at most: generous for any model of today, small enough that no
// product of fields overflows and no table of them exhausts memory. Not what a machine can run.
#pragma once

#include "model/config_fields.h"

namespace convene::model {

inline constexpr IntegerRange kVocabulary = {1, 1 << 24};
inline constexpr IntegerRange kHidden = {1, 1 << 17};
inline constexpr IntegerRange kLayers = {1, 1 << 12};
inline constexpr IntegerRange kHeads = {1, 1 << 12};
inline constexpr IntegerRange kHeadDim = {2, 1 << 13};
inline constexpr IntegerRange kIntermediate = {1, 1 << 20};
inline constexpr IntegerRange kExpertCount = {1, 1 << 16};
inline constexpr IntegerRange kExpertsOrNone = {0, kExpertCount.max};  // none: dense layers only
inline constexpr IntegerRange kPositions = {1, 1 << 27};               // tokens
inline constexpr NumberRange kNormEpsilon = {0, 1e-1};
inline constexpr NumberRange kRopeTheta = {1.5, 1e15};
inline constexpr NumberRange kClip = {1e-6, 1e9};
inline constexpr NumberRange kMultiplier = {1e-6, 1e6};

// Experts of all layers together; the largest models of today have about 25,000.
inline constexpr int64_t kMaxExpertsInModel = 1 << 16;

// Heads with latent attention of all layers together; DeepSeek-V3 has 7,808.
inline constexpr int64_t kMaxLatentHeadsInModel = 1 << 17;

}  // namespace convene::model
