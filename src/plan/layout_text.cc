#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "base/units.h"
#include "plan/plan.h"

namespace convene::plan {
namespace {

using strategy::Layout;

constexpr int kMostRanks = 4096;
constexpr std::string_view kDisaggregate = "disaggregate";
constexpr const char* kExample =
    "examples are attention=dp4,experts=ep4 and, where shares of the experts have weights (1 to "
    "4096), attention=dp2,experts=ep3:1";

// Takes a number of 1 to kMostRanks off the front of `text`.
bool TakeNumber(std::string_view* text, int* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc() || *number < 1 || *number > kMostRanks) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

struct Degree {
  std::string_view name;
  int* value;
  std::vector<int>* weights = nullptr;  // where its shares may have some: "ep3:1"
};

// Takes "dp4" or "ep3:1" off the front of `text`: a name, then a degree or the weights of as many.
bool TakeDegree(std::string_view* text, const Degree& degree) {
  if (!text->starts_with(degree.name)) return false;
  std::string_view rest = text->substr(degree.name.size());
  if (!TakeNumber(&rest, degree.value)) return false;
  std::vector<int> weights = {*degree.value};
  while (degree.weights != nullptr && rest.starts_with(':')) {
    rest.remove_prefix(1);
    if (!TakeNumber(&rest, &weights.emplace_back()) || weights.size() > kMostRanks) return false;
  }
  *text = rest;
  if (weights.size() == 1) return true;
  *degree.value = static_cast<int>(weights.size());
  *degree.weights = std::move(weights);
  return true;
}

Status ParseDegrees(std::string_view what, std::string_view text, std::vector<Degree> degrees) {
  const std::string_view whole = text;
  do {
    bool taken = false;
    for (auto degree = degrees.begin(); degree != degrees.end() && !taken; ++degree) {
      taken = TakeDegree(&text, *degree);
      if (!taken) continue;
      // Each once; slices are another word for the last of them.
      const int* value = degree->value;
      std::erase_if(degrees, [&](const Degree& other) { return other.value == value; });
      break;
    }
    if (!taken) {
      return Error{fmt::format("{}={} is no layout; {}", what, Quote(whole), kExample)};
    }
  } while (!text.empty());
  return {};
}

Status ParseExperts(std::string_view text, Layout* layout) {
  return ParseDegrees("experts", text,
                      {{"ep", &layout->expert_ep, &layout->expert_weights},
                       {"tp", &layout->expert_tp},
                       {"slice", &layout->expert_tp}});
}

// Which of its parts a layout's text has said.
struct Said {
  bool attention = false;
  bool experts = false;
};

Status ParseParts(std::string_view text, Layout* layout, Said* said) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    if (part == kDisaggregate && !layout->disaggregates) {
      layout->disaggregates = true;
      continue;
    }
    const bool is_attention = part.starts_with("attention=");
    if (std::exchange(is_attention ? said->attention : said->experts, true)) {
      return Error{fmt::format("the layout {} gives {} twice; {}", Quote(text),
                               is_attention ? "attention" : "the experts", kExample)};
    }
    Status parsed;
    if (is_attention) {
      parsed = ParseDegrees("attention", part.substr(10),
                            {{"tp", &layout->attention_tp}, {"dp", &layout->attention_dp}});
    } else if (part.starts_with("experts=")) {
      parsed = ParseExperts(part.substr(8), layout);
    } else {
      parsed = Error{fmt::format("{} is no layout; {}", Quote(text), kExample)};
    }
    if (!parsed) return parsed;
  }
  return {};
}

// Of ranks that have both, `unless` something is the case.
Status CheckProducts(std::string_view text, const Layout& layout, std::string_view unless) {
  const int attention = layout.num_attention_ranks();
  const int experts = layout.num_expert_ranks();
  if (attention == experts) return {};
  return Error{fmt::format("{} gives attention {} and the experts {}; both must have all of them{}",
                           Quote(text), FormatCount(static_cast<uint64_t>(attention), "rank"),
                           experts, unless)};
}

}  // namespace

Status CheckExperts(std::string_view experts) {
  Layout unused;
  return ParseExperts(experts, &unused);
}

Result<Layout> ParseLayout(std::string_view text) {
  Layout layout;
  Said said;
  if (Status parsed = ParseParts(text, &layout, &said); !parsed) return parsed.error();
  if (!layout.disaggregates) {
    const Status fit =
        CheckProducts(text, layout, ", unless they are on different ranks (--disaggregate)");
    if (!fit) return fit.error();
  } else if (!(said.attention && said.experts)) {
    return Error{
        fmt::format("the layout {} must say how many ranks have attention and how many "
                    "the experts, for instance attention=dp1,experts=ep2,disaggregate",
                    Quote(text))};
  }
  return layout;
}

Status ParseDecodeExperts(std::string_view experts, Plan* plan) {
  if (plan->layout.disaggregates) {
    plan->decode = plan->layout;
    return CheckDisaggregation(*plan);
  }
  const std::string whole = ToText(plan->layout);
  const std::string text = fmt::format("{},experts={}", whole.substr(0, whole.find(',')), experts);
  Layout decode;
  Said said;
  Status parsed = ParseParts(text, &decode, &said);
  if (parsed) parsed = CheckProducts(text, decode, "");
  if (!parsed) return parsed.error().At("decode");
  plan->decode = decode;
  return {};
}

std::string ToText(const Layout& layout) {
  const auto degrees = [](std::string_view first, int a, std::string_view second, int b,
                          const std::vector<int>& weights = {}) {
    const std::string number =
        weights.empty() ? fmt::format("{}", a) : fmt::format("{}", fmt::join(weights, ":"));
    if (b == 1) return fmt::format("{}{}", first, number);
    if (a == 1) return fmt::format("{}{}", second, b);
    return fmt::format("{}{}{}{}", first, number, second, b);
  };
  // One attention rank among others is one that has all heads of its own sequences.
  const bool is_one_of_several = layout.disaggregates && layout.num_attention_ranks() == 1;
  const std::string attention =
      is_one_of_several ? "dp1" : degrees("tp", layout.attention_tp, "dp", layout.attention_dp);
  return fmt::format("attention={},experts={}{}{}", attention,
                     degrees("ep", layout.expert_ep, "tp", layout.expert_tp, layout.expert_weights),
                     layout.disaggregates ? "," : "", layout.disaggregates ? kDisaggregate : "");
}

Layout DefaultLayout(int num_ranks) { return {.attention_dp = num_ranks, .expert_ep = num_ranks}; }

Status CheckRanks(const Layout& layout, int num_ranks) {
  if (layout.num_ranks() == num_ranks) return {};
  if (num_ranks == 1) {
    return Error{fmt::format(
        "the layout {} needs {} ranks, and this is one process: start it with mpirun -n {}",
        ToText(layout), layout.num_ranks(), layout.num_ranks())};
  }
  return Error{fmt::format(
      "the layout {} needs {}, and {} were started: start it with mpirun -n {}, or use for "
      "instance --layout {} or --layout attention=tp{},experts=tp{}",
      ToText(layout), FormatCount(static_cast<uint64_t>(layout.num_ranks()), "rank"), num_ranks,
      layout.num_ranks(), ToText(DefaultLayout(num_ranks)), num_ranks, num_ranks)};
}

}  // namespace convene::plan
