#include "server/load_shape.h"

#include <algorithm>

namespace convene::server {
namespace {

double MeanOf(int64_t sum, int64_t count) {
  return static_cast<double>(sum) / static_cast<double>(count);
}

}  // namespace

bool DifferMuch(const LoadShape& a, const LoadShape& b) {
  constexpr double kMuch = 2;
  const auto differ = [](double x, double y) { return std::max(x, y) >= kMuch * std::min(x, y); };
  return differ(a.prompt_tokens, b.prompt_tokens) || differ(a.gen_tokens, b.gen_tokens) ||
         differ(a.num_running, b.num_running);
}

std::optional<LoadShape> EpochCounts::Shape() const {
  if (std::min(num_prompts_, num_ended_) < kFewestChoices) return std::nullopt;
  return LoadShape{.prompt_tokens = MeanOf(prompt_tokens_, num_prompts_),
                   .gen_tokens = MeanOf(gen_tokens_, num_ended_),
                   .num_running = MeanOf(num_running_, num_steps_)};
}

}  // namespace convene::server
