// The attention half of a decoder layer: norm, QKV projection, RoPE and cache, attention over the
// paged cache, output projection, residual.
#pragma once

#include <vector>

#include "runtime/forward_context.h"
#include "runtime/kv_cache.h"
#include "runtime/step_rows.h"

namespace convene::runtime {

class AttentionLayer {
 public:
  AttentionLayer(ForwardContext& context, KvCache& cache) : context_(context), cache_(cache) {}

  // Adds the layer's attention to the residual stream, hidden (rows). With `only_wanted` all rows'
  // keys and values are cached, but only the wanted rows go on: they are moved to the front of
  // hidden. Returns how many rows go on.
  int Run(int layer_idx, const StepRows& rows, bool only_wanted);

 private:
  void PrepareQkv(int layer_idx, const StepRows& rows);
  void Attend(int layer_idx, const StepRows& rows);
  // Where there are too few units for the threads: their spans one by one, folded afterwards in
  // order, which gives the same bits. False if that does not apply.
  bool AttendInSpans(int layer_idx, const StepRows& rows);
  kernels::Attention Describe(int layer_idx, const StepRows& rows, const AttentionUnit& unit,
                              int thread_idx) const;

  static constexpr int kUnitsPerThread = 4;
  struct Span {
    int unit_idx;
    int span;
    int first_row;  // in span_partials
  };

  ForwardContext& context_;
  KvCache& cache_;
  std::vector<AttentionUnit> units_;
  std::vector<Span> spans_;
};

}  // namespace convene::runtime
