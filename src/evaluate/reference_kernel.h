// The reference kernels of a machine whose speed wanders: two products with invented weights, one
// so large that it waits for memory, with few rows, and one in the caches, with many. They run
// beside whatever is measured, and tell how fast the machine was meanwhile. Products, and no
// reading loop: where memory is fast a loop gains more from it than products do.
#pragma once

#include <vector>

#include "base/result.h"
#include "comm/group.h"
#include "cost/task_cost.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"
#include "memory/ledger.h"
#include "runtime/formats.h"

namespace convene::evaluate {

class ReferenceKernel {
 public:
  // Keeps references to kernels and pool. Its memory, some 150 MB, is reserved in `ledger` while it
  // lives. Error: it cannot be had.
  static Result<ReferenceKernel> Create(const kernels::KernelSet& kernels,
                                        hardware::ThreadPool& pool, const runtime::Formats& formats,
                                        memory::Ledger& ledger);

  // *Collective*, some 10 ms: by all ranks at once, this one's speed.
  cost::ReferenceSpeed Measure(comm::Group& group);
  // What Measure runs, by this rank: products that wait for memory, and products in the caches.
  void Run();
  // *Collective*, some 20 ms: by all ranks at once, bytes that this one copies in a second from
  // pieces that lie apart, as slices of experts do.
  double MeasureCopy(comm::Group& group);

 private:
  ReferenceKernel(const kernels::KernelSet& kernels, hardware::ThreadPool& pool,
                  const runtime::Formats& formats);
  double Seconds(int first, int count, int rows_each);

  const kernels::KernelSet* kernels_;
  hardware::ThreadPool* pool_;
  runtime::Formats formats_;
  std::vector<kernels::PackedMatrix> matrices_;
  memory::Reservation memory_;
  std::byte* rows_ = nullptr;
  std::byte* out_ = nullptr;
  std::byte* scratch_ = nullptr;
};

}  // namespace convene::evaluate
