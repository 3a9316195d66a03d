// Sums of floats over ranks, made of an exchange and additions of our own, so that their order is
// fixed: along the binary tree over ranks (neighbours meet at their lowest common ancestor), as
// kernels/route.h sums over experts. The result is bitwise the same on every rank, at every size of
// message and for every backend, and the same as one rank's where ranks hold aligned parts of the
// tree.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "comm/group.h"

namespace convene::comm {

// Collective. Rank i contributes `addends` (sum of counts), whose parts lie one after the other:
// counts[j] numbers for rank j. `sum` (counts[rank]) is the sum over ranks of its part. The buffers
// belong to the exchange until it is complete; `sum` may lie in no part of `addends` but the
// rank's own. The additions happen in the Test that finds all parts there.
std::unique_ptr<Exchange> StartReduceScatter(Group& group, int queue,
                                             std::span<const float> addends,
                                             std::span<const size_t> counts, std::span<float> sum,
                                             std::string what);

// Collective. Replaces `values`, as many on all ranks, by their sum over ranks: a reduce-scatter
// of equal parts and an all-gather of the sums. Until it is complete nothing else may be started on
// its queue, since its second half is started by Test.
std::unique_ptr<Exchange> StartAllReduce(Group& group, int queue, std::span<float> values,
                                         std::string what);

// Collective. Everybody's counts[i] bytes one after the other in `gathered`; this rank's must lie
// in their place there already.
std::unique_ptr<Exchange> StartAllGather(Group& group, int queue, std::span<const size_t> counts,
                                         std::span<std::byte> gathered, std::string what);

// The same, waited for.
void ReduceScatter(Group& group, int queue, std::span<const float> addends,
                   std::span<const size_t> counts, std::span<float> sum, std::string what);
void AllReduce(Group& group, int queue, std::span<float> values, std::string what);
void AllGatherInPlace(Group& group, int queue, std::span<const size_t> counts,
                      std::span<std::byte> gathered, std::string what);

// Where part `i` of `total` numbers in `num_parts` parts that differ by at most one begins.
size_t EvenPartStart(size_t total, int num_parts, int i);

}  // namespace convene::comm
