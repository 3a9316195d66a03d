// hwloc's objects as owners, and its view of a machine. What convene makes of it is topology.h;
// only sources of this folder include this.
#pragma once

#include <hwloc.h>

#include <memory>

#include "base/result.h"

namespace convene::hardware {

struct DestroyHwlocTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, DestroyHwlocTopology>;

struct FreeHwlocBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using HwlocBitmap = std::unique_ptr<hwloc_bitmap_s, FreeHwlocBitmap>;

// This machine, or an invented one if `synthetic` (hwloc's notation) is given. The calling thread
// stays where it is. Errors: hwloc cannot read the machine, or the description.
Result<HwlocTopology> LoadHwlocTopology(const char* synthetic);

}  // namespace convene::hardware
