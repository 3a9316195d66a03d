// Measured points of an operator to its model: several kinds of curves are tried, and the one that
// errs least at points held out of fitting is kept. It measures nothing itself.
#pragma once

#include <span>

#include "base/result.h"
#include "cost/operator_model.h"

namespace convene::cost {

inline constexpr int kLeastDistinctPoints = 3;
inline constexpr int kMostSamples = 1 << 20;

// Points are held out by features: those with the same features are held out together, in one of
// five parts that a digest of the features chooses; below 20 distinct ones each is held out by
// itself. The errors of a kind of curve are those at all points, each predicted by a curve fitted
// without its part; the kept curve is then fitted to all. A kind that cannot be fitted to all,
// since there are too many, is not tried. The line is replaced by a curve whose mean error is
// smaller by a tenth of it and by 0.1 percentage points; of several such, the one with the smallest
// is kept. The order of the samples does not matter, and the same samples give the same model, bit
// for bit. Errors: fewer than kLeastDistinctPoints different features or more than kMostSamples
// samples, more than kMostFeatures, a sample whose features are not as named or out of range.
Result<OperatorModel> FitOperatorModel(OperatorModelSpec spec,
                                       std::span<const OperatorSample> samples);

}  // namespace convene::cost
