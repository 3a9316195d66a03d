#include "weights/pack_batch.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "kernels/pack.h"
#include "weights/finite_weights.h"
#include "weights/gathered_rows.h"
#include "weights/stored_matrix.h"

namespace convene::weights {
namespace {

using kernels::kLanes;
using kernels::RowSource;

// Of sources, that a thread reads before it lets go of them: little enough for many threads, and so
// much that letting go takes no time beside it.
constexpr uint64_t kPortionBytes = uint64_t{1} << 20;
// Of a small batch each thread has several portions, but none of less than that.
constexpr uint64_t kFewestPortionBytes = uint64_t{256} << 10;
constexpr uint64_t kPortionsOfThread = 8;

// Of rows that are gathered. The stored matrix is read once for each part of it that has room.
constexpr uint64_t kMostGatheredBytes = uint64_t{32} << 20;
constexpr uint64_t kGatheredShareOfMemory = 16;

uint64_t NumGroups(const PackJob& job) {
  return static_cast<uint64_t>((job.target->rows + kLanes - 1) / kLanes);
}

uint64_t ScaleBytes(const PackJob& job) {
  uint64_t total = 0;
  for (const PackSource& source : job.sources) total += source.is_scales ? source.bytes.size() : 0;
  return total;
}

// Of elements, on average.
uint64_t BytesOfGroup(const PackJob& job) {
  return (job.source_bytes() - ScaleBytes(job)) / std::max<uint64_t>(NumGroups(job), 1) + 1;
}

// That a thread has of the job's sources in this process, with what came beside them.
uint64_t MappedAtATime(const PackJob& job) {
  const uint64_t around = 2 * checkpoint::kTouchedTogether * job.sources.size();
  return around +
         std::min(job.source_bytes(), std::max(kPortionBytes, BytesOfGroup(job)) + ScaleBytes(job));
}

// Of each matrix that rows are read of, the bytes of those rows.
class RowsRead {
 public:
  void Add(const RowSource& source) {
    if (source.matrix == nullptr) return;
    const auto known = std::ranges::find(ranges_, source.matrix, &Range::matrix);
    if (known == ranges_.end()) {
      ranges_.push_back({source.matrix, source.row, source.row});
    } else {
      known->first = std::min(known->first, source.row);
      known->last = std::max(known->last, source.row);
    }
  }

  void Drop() const {
    for (const auto& [matrix, first, last] : ranges_) {
      checkpoint::DontNeed(StoredBytes(*matrix, {first, last - first + 1}, {0, matrix->cols}));
    }
  }

 private:
  struct Range {
    const kernels::StoredMatrix* matrix;
    int first;
    int last;
  };
  std::vector<Range> ranges_;
};

}  // namespace

Result<BatchPacker> BatchPacker::Create(std::span<const PackJob* const> jobs,
                                        hardware::ThreadPool& pool, memory::Ledger& ledger) {
  uint64_t total_bytes = 0;
  uint64_t most_mapped = 0;
  uint64_t most_group = 0;
  uint64_t most_gathered = 0;
  for (const PackJob* job : jobs) {
    total_bytes += job->source_bytes();
    most_mapped = std::max(most_mapped, MappedAtATime(*job));
    if (!ReadsTransposed(*job)) continue;
    const uint64_t group_bytes = GatheredRows::GroupBytes(*job);
    most_group = std::max(most_group, group_bytes);
    most_gathered = std::max(most_gathered, group_bytes * NumGroups(*job));
  }
  BatchPacker packer(pool);
  if (most_gathered > 0) {
    const uint64_t room = std::min(kMostGatheredBytes, most_gathered);
    Result<memory::Reservation> gathered = ledger.Allocate(
        memory::Use::kStaging,
        std::max(std::min(ledger.available_bytes() / kGatheredShareOfMemory, room), most_group));
    if (!gathered) return gathered.error();
    packer.gathered_ = *std::move(gathered);
  }
  const uint64_t mapped = std::min(most_mapped * static_cast<uint64_t>(pool.size()), total_bytes);
  Result<memory::Reservation> reserved =
      ledger.Reserve(memory::Use::kStaging, std::min(mapped, ledger.available_bytes()));
  if (!reserved) return reserved.error();
  packer.mapped_ = *std::move(reserved);
  return packer;
}

Status BatchPacker::Pack(std::span<const PackJob* const> batch) {
  std::vector<const PackJob*> direct;
  for (const PackJob* job : batch) {
    if (!ReadsTransposed(*job)) direct.push_back(job);
  }
  if (Status packed = PackDirectly(direct); !packed) return packed;
  for (const PackJob* job : batch) {
    if (!ReadsTransposed(*job)) continue;
    if (Status packed = PackGathered(*job); !packed) return packed;
  }
  return {};
}

Status BatchPacker::PackDirectly(std::span<const PackJob* const> jobs) {
  struct Portion {
    size_t job_idx;
    int first_group;
    int end_group;
  };
  uint64_t total_bytes = 0;
  for (const PackJob* job : jobs) total_bytes += job->source_bytes();
  const uint64_t portion_bytes =
      std::clamp(total_bytes / (kPortionsOfThread * static_cast<uint64_t>(pool_->size())),
                 kFewestPortionBytes, kPortionBytes);
  std::vector<Portion> portions;
  std::vector<std::atomic<int>> num_left(jobs.size());  // portions, of each job
  for (size_t i = 0; i < jobs.size(); ++i) {
    const auto num_groups = static_cast<int>(NumGroups(*jobs[i]));
    const int count = static_cast<int>(std::clamp<uint64_t>(
        portion_bytes / BytesOfGroup(*jobs[i]), 1, std::max<uint64_t>(NumGroups(*jobs[i]), 1)));
    for (int first = 0; first < num_groups; first += count) {
      portions.push_back({i, first, std::min(first + count, num_groups)});
      ++num_left[i];
    }
  }
  std::atomic<const PackJob*> bad_job = nullptr;
  pool_->ParallelFor(std::ssize(portions), [&](int64_t index, int) {
    const auto& [job_idx, first_group, end_group] = portions[static_cast<size_t>(index)];
    const PackJob& job = *jobs[job_idx];
    RowsRead read;
    for (int group = first_group; group < end_group; ++group) {
      RowSource sources[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        sources[lane] = job.source_of(group * kLanes + lane);
        read.Add(sources[lane]);
      }
      if (!kernels::PackGroup(sources, *job.target, group, Writable(*job.target))) bad_job = &job;
    }
    read.Drop();
    if (--num_left[job_idx] > 0) return;
    // With scales, and with what its portions have brought along of each other's pages.
    for (const PackSource& source : job.sources) checkpoint::DontNeed(source.bytes);
  });
  return bad_job == nullptr ? Status() : Status(NotFiniteError(*bad_job));
}

Status BatchPacker::PackGathered(const PackJob& job) {
  const auto num_groups = static_cast<int>(NumGroups(job));
  const auto at_a_time = static_cast<int>(gathered_.size_bytes() / GatheredRows::GroupBytes(job));
  std::atomic<bool> is_finite = true;
  for (int first = 0; first < num_groups; first += at_a_time) {
    const int count = std::min(at_a_time, num_groups - first);
    const GatheredRows rows(job, first * kLanes, count * kLanes, gathered_.bytes());
    rows.Gather(kPortionBytes, *pool_);
    pool_->ParallelFor(count, [&](int64_t index, int) {
      const auto group = static_cast<int>(index);
      const RowSource* sources = rows.sources() + index * kLanes;
      const bool is_good =
          kernels::PackGroup(sources, *job.target, first + group, Writable(*job.target));
      if (!is_good) is_finite = false;
    });
  }
  return is_finite ? Status() : Status(NotFiniteError(job));
}

void EvictSources(const PackJob& job) {
  for (const PackSource& source : job.sources) checkpoint::Evict(source.bytes);
}

}  // namespace convene::weights
