#include "bench/scenario_variant.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace convene::bench {

Result<Variant> ParseVariant(const std::string& text, std::string layout) {
  Variant variant{.name = text, .plan = {.wire = plan::Wire::kBf16}};
  std::optional<plan::DisaggregatedStrategy> chosen;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    const std::string value = word.substr(std::min(word.size(), word.find('=') + 1));
    if (word == "base") {
      variant.plan.pipeline.overlap = false;
    } else if (word.starts_with("pipeline=")) {
      if (Status parsed = plan::ParsePipeline(value, &variant.plan); !parsed) return parsed.error();
    } else if (word == "online") {
      variant.is_solved = true;
    } else if (word == "cuts=fit") {
      variant.fit_cuts = true;
    } else if (word.starts_with("micro_batches=")) {
      variant.plan.pipeline.micro_batches = std::max(1, std::atoi(value.c_str()));
    } else if (word.starts_with("strategy=")) {
      const auto named = plan::DisaggregatedStrategyFromName(value);
      if (!named) return named.error();
      chosen = *named;
    } else if (word.starts_with("order=")) {
      const auto order = plan::OrderFromName(value);
      if (!order) return order.error();
      variant.plan.pipeline.order = *order;
    } else if (word.starts_with("wire=")) {
      const auto wire = plan::WireFromName(value);
      if (!wire) return wire.error();
      variant.plan.wire = *wire;
    } else if (word.starts_with("gemm=")) {
      const auto gemm = plan::GemmFromName(value);
      if (!gemm) return gemm.error();
      variant.plan.gemm = *gemm;
    } else if (word.starts_with("budget=")) {
      variant.plan.comm_budget = std::atoi(value.c_str());
    } else if (word.starts_with("capacity=")) {
      variant.capacity_factor = std::atof(value.c_str());
    } else if (word.starts_with("layout=")) {
      layout = word.substr(7);
      std::replace(layout.begin(), layout.end(), '+', ',');
    } else {
      return Error{fmt::format("a plan has no word {}", word)};
    }
  }
  const auto parsed = plan::ParseLayout(layout);
  if (!parsed) return parsed.error();
  variant.plan.layout = *parsed;
  if (chosen) {
    if (Status set = plan::SetStrategy(*chosen, &variant.plan); !set) return set.error();
  }
  if (Status fits = plan::CheckLayout(variant.plan); !fits) return fits.error();
  return variant;
}

}  // namespace convene::bench
