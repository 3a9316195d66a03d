// The products with weights of which a task consists: the shapes of their matrices, as a device
// that computes them one after the other sees them. How long they take is operator_costs.h's.
#pragma once

#include <vector>

#include "model/model_spec.h"
#include "schedule/schedule.h"

namespace convene::cost {

// (rows, inner) times (inner, columns), the weights being the second.
struct Matrix {
  double columns = 0;
  double inner = 0;
  // What ranks that share it divide.
  enum class Split { kNothing, kColumns, kInner } split = Split::kNothing;

  double elements() const { return columns * inner; }
};

// Of a task other than kExperts, in the order in which they are computed; none: it has no weights.
// `is_projected`: queries, keys and values are a task of their own (kProject).
std::vector<Matrix> WholeMatricesOf(const schedule::Task& task, const model::ModelSpec& spec,
                                    bool is_projected);

// The rank's parts of them, which together have so many elements. Matrices of the sizes that the
// kind of task is expected to have; where none are known, one with all the elements.
std::vector<Matrix> MatricesOfPart(std::vector<Matrix> whole, double elements, double hidden);

}  // namespace convene::cost
