// What each activity of a schedule asks of which resource: the schedule's work at given sizes on
// given rates. When it runs, and beside what, is simulate/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cost/rates.h"
#include "cost/sizes.h"
#include "schedule/activity_graph.h"

namespace convene::cost {

enum class ResourceKind { kCores, kMemory, kLink, kDisk };

struct Resource {
  std::string name;  // "r0 cores", "memory", "r1 out"
  ResourceKind kind = ResourceKind::kCores;
  RateCurve rate;
};

struct Demand {
  int32_t resource = 0;
  int32_t streams = 1;
  double amount = 0;  // in units of the resource's rate times seconds; above 0
};

struct Prices {
  std::vector<Resource> resources;
  std::vector<double> fixed_seconds;  // by activity, before it asks for anything
  std::vector<int32_t> first_demand;  // by activity, and one more
  std::vector<Demand> demands;        // each resource at most once per activity

  std::span<const Demand> demands_of(int activity) const {
    return std::span(demands).subspan(first_demand[activity],
                                      first_demand[activity + 1] - first_demand[activity]);
  }
};

// Roofline: alone on the machine, an activity takes its fixed seconds and then as long as the
// slowest of its demands. Linear in tasks and terms.
Prices PriceSchedule(const schedule::Schedule& schedule, const schedule::ActivityGraph& graph,
                     const Rates& rates, const Sizes& sizes);

// Of an activity that shares nothing.
double SecondsAlone(const Prices& prices, int activity);

}  // namespace convene::cost
