// What `compare` found, as tables for people and as JSON. Measures nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/logits_difference.h"
#include "evaluate/scored_text.h"
#include "evaluate/weight_errors.h"

namespace convene::cli {

struct ComparedModel {
  std::string name;
  std::optional<uint64_t> weights_bytes = {};  // none where weights are only rounded
  evaluate::LogitsDifference difference;       // from the reference
};

nlohmann::ordered_json ToJson(const ComparedModel& model);
nlohmann::ordered_json ToJson(const evaluate::SchemeErrors& errors);

// A line per model; the first is the reference itself.
std::string FormatComparison(const std::vector<ComparedModel>& models,
                             const evaluate::ScoredText& text);
// A line per scheme.
std::string FormatErrors(const std::vector<evaluate::SchemeErrors>& schemes);

}  // namespace convene::cli
