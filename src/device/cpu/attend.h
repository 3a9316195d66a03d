// Runs the attention of a layer, however its keys and values came about: a list of kernel calls,
// divided among the threads, and by spans of keys where there are too few of them.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cpu/forward_context.h"

namespace convene::device {

class Attender {
 public:
  explicit Attender(ForwardContext& context) : context_(context) {}

  // `units` have no scratch yet, and all the same value_dim. Counts their operations.
  void Run(std::vector<kernels::Attention>& units);

 private:
  // Where there are too few units for the threads: their spans one by one, folded afterwards in
  // order, which gives the same bits. False if that does not apply.
  bool RunInSpans(const std::vector<kernels::Attention>& units);
  kernels::Attention WithScratch(const kernels::Attention& unit, int thread_idx) const;

  static constexpr int kUnitsPerThread = 4;
  struct Span {
    int unit_idx;
    int span;
    int first_row;  // in span_partials
  };

  ForwardContext& context_;
  std::vector<Span> spans_;
};

}  // namespace convene::device
