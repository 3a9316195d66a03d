#include "planner/model_roofline.h"

namespace convene::planner {

cost::TierWork AttentionWork(const OffloadModel& model, double context, double kv_element_bytes,
                             double resident) {
  const double bytes = model.CachedElements(context) * kv_element_bytes;
  return {.flops = model.ScoreFlops(context),
          .fast_bytes = bytes,
          .slow_bytes = bytes * (1 - resident)};
}

cost::TierWork ExpertsWork(const OffloadModel& model, double batch, double micro_batch,
                           double weight_bytes, double resident) {
  return {.flops = model.StreamedFlops(batch),
          .fast_bytes = batch / micro_batch * model.VisitedElements(micro_batch) * weight_bytes,
          .slow_bytes = model.VisitedElements(batch) * weight_bytes * (1 - resident)};
}

int BatchOfIntensity(const OffloadModel& model, double intensity, double weight_bytes,
                     double resident, int most) {
  // The intensity grows with the batch, since more tokens share what is read.
  const auto reaches = [&](int batch) {
    const cost::TierWork work = ExpertsWork(model, batch, batch, weight_bytes, resident);
    return work.slow_bytes <= 0 || work.slow_intensity() >= intensity * (1 - 1e-12);
  };
  if (!reaches(most)) return 0;
  int low = 0;  // does not reach it
  int high = most;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (reaches(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace convene::planner
