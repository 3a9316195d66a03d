// GPUs in words, for people.
#pragma once

#include <string>

#include "hardware/gpu.h"
#include "hardware/profile.h"

namespace convene::cli {

// Lines about those that this process may use, or why the driver does not tell; empty where there
// is none.
std::string DescribeGpus();

// What was measured of one, as lines of the table of `convene measure`.
std::string DescribeMeasured(const hardware::GpuProfile& gpu);

}  // namespace convene::cli
