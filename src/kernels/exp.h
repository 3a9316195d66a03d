// Exponentials of many numbers, with the same bits on every machine: tokens are drawn by them, for
// each token of a vocabulary. The mathematics library's differ with the instructions that it finds.
#pragma once

#include <span>

namespace convene::kernels {

// results (as many as values) = exp((values - largest) * scale) with a relative error below 2e-14
// where the exponent is -708 to 708, 0 below, infinity above, and NaN of NaN.
void ExpOfDifferences(std::span<const float> values, float largest, double scale,
                      std::span<double> results);

// The same for values of at most `largest` and a scale above 0, two to three times as fast, with a
// relative error below 1.2e-5 where the exponent is above -87, and 0 below.
void RoughExpOfDifferences(std::span<const float> values, float largest, double scale,
                           std::span<double> results);

// The sum, in an order that depends on the size alone.
double Sum(std::span<const double> values);

}  // namespace convene::kernels
