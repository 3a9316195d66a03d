// What is left of an amount of work once sizes have become numbers, as in traces.
#pragma once

#include "schedule/schedule.h"

namespace convene::drawing {

// The sum of the terms that depend on no size.
inline double ConstantValue(const schedule::Amount& amount) {
  double value = 0;
  for (const schedule::Term& term : amount)
    value += term.size.kind == schedule::SizeKind::kOne ? term.factor : 0;
  return value;
}

}  // namespace convene::drawing
