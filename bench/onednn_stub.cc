// Stands for onednn_baseline.cc where oneDNN is not installed.
#include "bench/onednn_baseline.h"

namespace convene::bench {

Result<OneDnnRate> MeasureOneDnn(kernels::ActivationFormat, const ExpertShape&,
                                 const std::vector<int>&, double) {
  return Error{"built without oneDNN; install libdnnl-dev, then configure and build again"};
}

}  // namespace convene::bench
