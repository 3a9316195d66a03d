// The bytes of a checkpoint that several ranks read: everything but the routed experts, each of
// which (or each slice of which) one rank has. Their digests are made when a rank has packed them,
// since the page cache has them then. What they are compared with is the caller's matter.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "base/digest.h"
#include "checkpoint/checkpoint.h"
#include "hardware/thread_pool.h"
#include "weights/pack_jobs.h"
#include "weights/share.h"

namespace convene::weights {

class ComparedBytes {
 public:
  // `jobs`: all that the rank, which has `share`, will pack of the checkpoint. Checkpoint and jobs
  // must live as long as this.
  ComparedBytes(const checkpoint::Checkpoint& checkpoint, const Share& share,
                std::span<const PackJob> jobs);

  // What some of the jobs have read, each range of bytes once; its pages are dropped behind it.
  void Add(std::span<const PackJob> batch, hardware::ThreadPool& pool);

  // After the last: with the norms and biases, which no job packs. Names are those of stored
  // tensors; a range of one that a rank reads in part has it beside its name.
  std::vector<NamedDigest> Finish(hardware::ThreadPool& pool);

 private:
  void Digest(std::span<const PackSource> sources, hardware::ThreadPool& pool);

  std::map<const std::byte*, size_t> left_;  // ranges to come: beginning and size
  std::vector<PackSource> vectors_;
  std::vector<NamedDigest> digests_;
};

}  // namespace convene::weights
