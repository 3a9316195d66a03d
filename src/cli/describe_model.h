// A ModelSpec in words, for people. The same as data is inspect's --json.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/model_spec.h"

namespace convene::cli {

// What is worth knowing of the architecture, as pairs of a name and a phrase:
// {"experts", "64 of width 1,024, 8 per token"}. Layers that differ are summed up.
std::vector<std::pair<std::string, std::string>> DescribeModel(const model::ModelSpec& spec);

}  // namespace convene::cli
