#include "weights/pack_batch.h"

#include <atomic>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "kernels/pack.h"
#include "weights/finite_weights.h"

namespace convene::weights {

Status PackBatch(std::span<const PackJob* const> batch, hardware::ThreadPool& pool) {
  struct Group {
    const PackJob* job;
    int group;
  };
  std::vector<Group> groups;
  for (const PackJob* job : batch) {
    const int count = (job->target->rows + kernels::kLanes - 1) / kernels::kLanes;
    for (int group = 0; group < count; ++group) groups.push_back({job, group});
  }
  std::atomic<const PackJob*> bad_job = nullptr;
  pool.ParallelFor(
      std::ssize(groups),
      [&](int64_t index, int) {
        const auto& [job, group] = groups[index];
        kernels::RowSource sources[kernels::kLanes];
        for (int lane = 0; lane < kernels::kLanes; ++lane) {
          sources[lane] = job->source_of(group * kernels::kLanes + lane);
        }
        auto* target = const_cast<std::byte*>(job->target->data);
        if (!kernels::PackGroup(sources, *job->target, group, target)) bad_job = job;
      },
      4);
  return bad_job == nullptr ? Status() : Status(NotFiniteError(*bad_job));
}

void DropSources(const PackJob& job) {
  for (const PackSource& source : job.sources) checkpoint::DontNeed(source.bytes);
}

void EvictSources(const PackJob& job) {
  for (const PackSource& source : job.sources) checkpoint::Evict(source.bytes);
}

}  // namespace convene::weights
