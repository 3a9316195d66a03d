// The paged KV cache as it is known above the device: blocks of kKvBlockTokens positions, over all
// layers, reached through a table of addresses, so that a block may lie, and move, anywhere. What
// is in a block only the device knows; which sequence owns which block is engine/'s matter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hardware/thread_pool.h"

namespace convene::device {

class KvCache {
 public:
  virtual ~KvCache() = default;

  virtual int num_layers() const = 0;
  virtual int num_blocks() const = 0;
  // Bytes of a block in one layer.
  virtual int64_t BlockBytes(int layer) const = 0;
  // Where layer `layer` of a block lies in the device's memory.
  virtual std::byte* Address(int layer, int block) const = 0;
  // Takes memory from the machine that blocks would otherwise take when they are first written, in
  // the middle of a step: of all layers those of low number first, until all is taken or `most_s`
  // seconds are over.
  virtual void TakeMemory(hardware::ThreadPool& pool, double most_s) = 0;
  // From here on it lies at `to` (BlockBytes(layer) of the device's memory, 64-byte aligned), whose
  // owner keeps it while it does. Not while a step is under way.
  virtual void Move(int layer, int block, std::byte* to) = 0;

  // Behind its own blocks the table of each layer has so many *places* from here on, which are
  // blocks without memory (runtime/spilled_kv.h). Not while a step is under way.
  virtual void SetPlaces(int count) = 0;
  // Block num_blocks() + place of a layer lies at `at` from here on (as Move's `to`); null:
  // nowhere, and no operator may ask for it. Nothing is copied. Not while an operator uses that
  // block.
  virtual void Put(int layer, int place, std::byte* at) = 0;
};

}  // namespace convene::device
