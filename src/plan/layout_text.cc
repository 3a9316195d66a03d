#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>
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
constexpr std::string_view kLayers = "layers=";
constexpr const char* kExample =
    "examples are attention=dp4,experts=ep4 and, where shares of the experts have weights (1 to "
    "4096), attention=dp2,experts=ep3:1; with shared experts, dense blocks and the head divided, "
    "too, attention=tp2,experts=tp2,shared=tp2,dense=tp2,head=tp2; or layers=pp2, where each rank "
    "has some of the layers";

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

// "1:3" behind "attention=dp2@". Which ranks they may be is NormalizeAttentionRanks's.
Status ParseAttentionRanks(std::string_view text, Layout* layout) {
  std::string_view rest = text;
  bool is_rank = true;
  for (bool goes_on = true; is_rank && goes_on;) {
    int rank = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), rank);
    is_rank = error == std::errc() && rank >= 0 && rank < kMostRanks &&
              layout->attention_ranks.size() < kMostRanks;
    if (!is_rank) break;
    layout->attention_ranks.push_back(rank);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    goes_on = rest.starts_with(':');
    if (goes_on) rest.remove_prefix(1);
  }
  if (is_rank && rest.empty()) return {};
  return Error{fmt::format(
      "{} behind @ names no ranks; an example is attention=dp2@1:3,experts=ep2,disaggregate, in "
      "which ranks 1 and 3 have attention",
      Quote(text))};
}

Status ParseAttention(std::string_view text, Layout* layout) {
  const size_t at = text.find('@');
  Status parsed = ParseDegrees("attention", text.substr(0, at),
                               {{"tp", &layout->attention_tp}, {"dp", &layout->attention_dp}});
  if (!parsed || at == std::string_view::npos) return parsed;
  return ParseAttentionRanks(text.substr(at + 1), layout);
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
  bool shared = false;
  bool head = false;
  bool dense = false;
  int dense_parts = 1;
  int shared_parts = 1;
  int head_parts = 1;
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
    struct Known {
      std::string_view name;
      const char* of;
      bool* said;
    };
    const Known known[] = {{"attention=", "attention", &said->attention},
                           {"experts=", "the experts", &said->experts},
                           {"shared=", "the shared experts", &said->shared},
                           {"dense=", "the dense blocks", &said->dense},
                           {"head=", "the head", &said->head}};
    const auto* const found =
        std::ranges::find_if(known, [&](const Known& one) { return part.starts_with(one.name); });
    if (found == std::end(known)) {
      return Error{fmt::format("{} is no layout; {}", Quote(text), kExample)};
    }
    if (std::exchange(*found->said, true)) {
      return Error{
          fmt::format("the layout {} gives {} twice; {}", Quote(text), found->of, kExample)};
    }
    const std::string_view value = part.substr(found->name.size());
    Status parsed;
    if (found->said == &said->attention) {
      parsed = ParseAttention(value, layout);
    } else if (found->said == &said->experts) {
      parsed = ParseExperts(value, layout);
    } else if (found->said == &said->shared) {
      parsed = ParseDegrees("shared", value, {{"tp", &said->shared_parts}});
    } else if (found->said == &said->dense) {
      parsed = ParseDegrees("dense", value, {{"tp", &said->dense_parts}});
    } else {
      parsed = ParseDegrees("head", value, {{"tp", &said->head_parts}});
    }
    if (!parsed) return parsed;
  }
  return {};
}

// Which ranks have attention, where the layout names them; the first ones need no names.
Status NormalizeAttentionRanks(std::string_view text, Layout* layout) {
  std::vector<int>& ranks = layout->attention_ranks;
  if (ranks.empty()) return {};
  if (!layout->disaggregates) {
    return Error{fmt::format(
        "the layout {} names the ranks with attention (@), but all ranks have attention unless it "
        "is on other ranks than the experts: add --disaggregate, or leave @ and what follows it "
        "out",
        Quote(text))};
  }
  const auto num_named = static_cast<uint64_t>(ranks.size());
  if (std::ssize(ranks) != layout->num_attention_ranks()) {
    return Error{fmt::format(
        "the layout {} gives attention {} and names {} (@)", Quote(text),
        FormatCount(static_cast<uint64_t>(layout->num_attention_ranks()), "rank"), num_named)};
  }
  if (!std::ranges::is_sorted(ranks, std::less_equal<>())) {
    return Error{fmt::format(
        "the layout {} must name the ranks with attention (@) in increasing order, each once",
        Quote(text))};
  }
  if (ranks.back() >= layout->num_ranks()) {
    return Error{fmt::format("the layout {} gives attention to rank {}, and its ranks are 0 to {}",
                             Quote(text), ranks.back(), layout->num_ranks() - 1)};
  }
  if (ranks.back() == layout->num_attention_ranks() - 1) ranks.clear();
  return {};
}

// "layers=pp2", "layers=pp3:1".
Result<Layout> ParseStages(std::string_view text) {
  if (text.find(',') != std::string_view::npos) {
    return Error{fmt::format(
        "the layout {} divides layers, of which each rank has some whole: nothing stands beside "
        "layers=pp2",
        Quote(text))};
  }
  Layout layout;
  const Status parsed = ParseDegrees("layers", text.substr(kLayers.size()),
                                     {{"pp", &layout.stages, &layout.stage_weights}});
  if (!parsed) return parsed.error();
  return layout;
}

// "head=tp4": of all ranks, or of one.
Status SetHead(std::string_view text, int head_parts, Layout* layout) {
  if (head_parts <= 1) return {};
  if (layout->disaggregates) {
    return Error{fmt::format(
        "the layout {} divides the head, which is on rank 0 where attention and experts are on "
        "different ranks: leave head= out",
        Quote(text))};
  }
  if (head_parts != layout->num_ranks()) {
    return Error{fmt::format(
        "the layout {} divides the head into {} parts; all {} ranks have one each (head=tp{}), or "
        "rank 0 has it whole",
        Quote(text), head_parts, layout->num_ranks(), layout->num_ranks())};
  }
  layout->divides_head = true;
  return {};
}

// "shared=tp4": of all ranks, each of which has a slice of every other expert, too.
Status SetShared(std::string_view text, int shared_parts, Layout* layout) {
  if (shared_parts <= 1) return {};
  const int num_ranks = layout->num_ranks();
  if (layout->disaggregates || layout->expert_ep > 1 || shared_parts != num_ranks) {
    return Error{fmt::format(
        "the layout {} divides shared experts into {} slices, which is possible where all ranks "
        "have a slice of each routed expert, into as many: use experts=tp{},shared=tp{}, or leave "
        "shared= out",
        Quote(text), shared_parts, num_ranks, num_ranks)};
  }
  layout->divides_shared = true;
  return {};
}

// "dense=tp4": as many parts as those of the heads.
Status SetDense(std::string_view text, int dense_parts, Layout* layout) {
  if (dense_parts <= 1) return {};
  if (dense_parts != layout->attention_tp) {
    return Error{fmt::format(
        "the layout {} divides dense blocks into {} parts, and heads into {}; they are divided "
        "among the same ranks: use attention=tp{} and dense=tp{}, or leave dense= out",
        Quote(text), dense_parts, layout->attention_tp, dense_parts, dense_parts)};
  }
  layout->divides_dense = true;
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
  if (text.starts_with(kLayers)) return ParseStages(text);
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
  if (Status fit = NormalizeAttentionRanks(text, &layout); !fit) return fit.error();
  if (Status fit = SetHead(text, said.head_parts, &layout); !fit) return fit.error();
  if (Status fit = SetShared(text, said.shared_parts, &layout); !fit) return fit.error();
  if (Status fit = SetDense(text, said.dense_parts, &layout); !fit) return fit.error();
  return layout;
}

Status ParseDecodeExperts(std::string_view experts, Plan* plan) {
  if (plan->layout.disaggregates || plan->layout.stages > 1) {
    plan->decode = plan->layout;
    return CheckLayout(*plan);
  }
  const std::string whole = ToText(plan->layout);
  const std::string text = fmt::format("{},experts={}", whole.substr(0, whole.find(',')), experts);
  Layout decode;
  Said said;
  Status parsed = ParseParts(text, &decode, &said);
  if (parsed) parsed = CheckProducts(text, decode, "");
  if (!parsed) return parsed.error().At("decode");
  decode.divides_head = plan->layout.divides_head;
  decode.divides_dense = plan->layout.divides_dense;
  const strategy::Layout& prefill = plan->layout;
  decode.divides_shared = prefill.divides_shared && decode.expert_ep == prefill.expert_ep &&
                          decode.expert_tp == prefill.expert_tp;
  plan->decode = decode;
  return {};
}

std::string ToText(const Layout& layout) {
  if (layout.stages > 1) {
    return layout.stage_weights.empty()
               ? fmt::format("{}pp{}", kLayers, layout.stages)
               : fmt::format("{}pp{}", kLayers, fmt::join(layout.stage_weights, ":"));
  }
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
  const std::string on = layout.attention_ranks.empty()
                             ? ""
                             : fmt::format("@{}", fmt::join(layout.attention_ranks, ":"));
  const std::string head = layout.divides_head ? fmt::format(",head=tp{}", layout.num_ranks()) : "";
  const std::string shared =
      layout.divides_shared ? fmt::format(",shared=tp{}", layout.num_ranks()) : "";
  const std::string dense =
      layout.divides_dense ? fmt::format(",dense=tp{}", layout.attention_tp) : "";
  return fmt::format("attention={}{},experts={}{}{}{}{}{}", attention, on,
                     degrees("ep", layout.expert_ep, "tp", layout.expert_tp, layout.expert_weights),
                     shared, dense, head, layout.disaggregates ? "," : "",
                     layout.disaggregates ? kDisaggregate : "");
}

std::string ExpertsText(const Layout& layout) {
  constexpr std::string_view kExperts = "experts=";
  const std::string text = ToText(layout);
  const size_t begin = text.find(kExperts) + kExperts.size();
  return text.substr(begin, text.find(',', begin) - begin);
}

Layout DefaultLayout(int num_ranks) { return {.attention_dp = num_ranks, .expert_ep = num_ranks}; }

Status CheckRanks(const Layout& layout, int num_ranks) {
  if (layout.num_ranks() == num_ranks) return {};
  if (num_ranks == 1) {
    return Error{fmt::format(
        "the layout {} needs {} ranks, and this is one process: start it with mpirun -n {} "
        "--bind-to none",
        ToText(layout), layout.num_ranks(), layout.num_ranks())};
  }
  return Error{fmt::format(
      "the layout {} needs {}, and {} were started: start it with mpirun -n {} --bind-to none, or "
      "use for instance --layout {} or --layout attention=tp{},experts=tp{}",
      ToText(layout), FormatCount(static_cast<uint64_t>(layout.num_ranks()), "rank"), num_ranks,
      layout.num_ranks(), ToText(DefaultLayout(num_ranks)), num_ranks, num_ranks)};
}

}  // namespace convene::plan
