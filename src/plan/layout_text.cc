#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/quote.h"
#include "plan/plan.h"

namespace convene::plan {
namespace {

using strategy::Layout;

constexpr int kMostRanks = 4096;
constexpr const char* kExample = "an example is attention=dp4,experts=ep4";

// Takes "dp4" off the front of `text`: a name, then a degree.
bool TakeDegree(std::string_view* text, std::string_view name, int* degree) {
  if (!text->starts_with(name)) return false;
  const std::string_view digits = text->substr(name.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *degree);
  if (error != std::errc() || *degree < 1 || *degree > kMostRanks) return false;
  *text = digits.substr(static_cast<size_t>(end - digits.data()));
  return true;
}

struct Degree {
  std::string_view name;
  int* value;
};

Status ParseDegrees(std::string_view what, std::string_view text, std::vector<Degree> degrees) {
  const std::string_view whole = text;
  while (!text.empty()) {
    bool taken = false;
    for (auto degree = degrees.begin(); degree != degrees.end() && !taken; ++degree) {
      taken = TakeDegree(&text, degree->name, degree->value);
      if (!taken) continue;
      // Each once; slices are another word for the last of them.
      const int* value = degree->value;
      std::erase_if(degrees, [&](const Degree& other) { return other.value == value; });
      break;
    }
    if (!taken) {
      return Error{
          fmt::format("{}={} is no layout; {}", what, Quote(std::string(whole)), kExample)};
    }
  }
  return {};
}

}  // namespace

Result<Layout> ParseLayout(std::string_view text) {
  Layout layout;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    Status parsed;
    if (part.starts_with("attention=")) {
      parsed = ParseDegrees("attention", part.substr(10),
                            {{"tp", &layout.attention_tp}, {"dp", &layout.attention_dp}});
    } else if (part.starts_with("experts=")) {
      parsed = ParseDegrees(
          "experts", part.substr(8),
          {{"ep", &layout.expert_ep}, {"tp", &layout.expert_tp}, {"slice", &layout.expert_tp}});
    } else {
      parsed = Error{fmt::format("{} is no layout; {}", Quote(std::string(text)), kExample)};
    }
    if (!parsed) return parsed.error();
  }
  const int attention = layout.attention_tp * layout.attention_dp;
  const int experts = layout.expert_ep * layout.expert_tp;
  if (attention != experts) {
    return Error{
        fmt::format("{} gives attention {} ranks and the experts {}; both must have all of them",
                    Quote(std::string(text)), attention, experts)};
  }
  return layout;
}

std::string ToText(const Layout& layout) {
  const auto degrees = [](std::string_view first, int a, std::string_view second, int b) {
    if (b == 1) return fmt::format("{}{}", first, a);
    if (a == 1) return fmt::format("{}{}", second, b);
    return fmt::format("{}{}{}{}", first, a, second, b);
  };
  return fmt::format("attention={},experts={}",
                     degrees("tp", layout.attention_tp, "dp", layout.attention_dp),
                     degrees("ep", layout.expert_ep, "tp", layout.expert_tp));
}

Layout DefaultLayout(int num_ranks) { return {.attention_dp = num_ranks, .expert_ep = num_ranks}; }

Status CheckRanks(const Layout& layout, int num_ranks) {
  if (layout.num_ranks() == num_ranks) return {};
  if (num_ranks == 1) {
    return Error{fmt::format(
        "the layout {} needs {} ranks, and this is one process: start it with mpirun -n {}",
        ToText(layout), layout.num_ranks(), layout.num_ranks())};
  }
  return Error{
      fmt::format("the layout {} needs {} ranks, and there are {}: start it with mpirun "
                  "-n {}, or use for instance --layout {} or --layout "
                  "attention=tp{},experts=tp{}",
                  ToText(layout), layout.num_ranks(), num_ranks, layout.num_ranks(),
                  ToText(DefaultLayout(num_ranks)), num_ranks, num_ranks)};
}

}  // namespace convene::plan
