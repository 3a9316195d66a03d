#include "planner/hybrid_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/units.h"
#include "planner/cbc/solve_hybrid.h"

namespace convene::planner {
namespace {

constexpr double kForbidden = std::numeric_limits<double>::infinity();

std::string DegreesText(const char* outer, int outer_degree, const char* inner, int inner_degree) {
  if (inner_degree == 1) return fmt::format("{}{}", outer, outer_degree);
  if (outer_degree == 1) return fmt::format("{}{}", inner, inner_degree);
  return fmt::format("{}{}{}{}", outer, outer_degree, inner, inner_degree);
}

// Why attention cannot be divided so; empty: it can.
std::string WhyNot(const model::ModelSpec& spec, const AttentionStrategy& strategy) {
  for (const model::LayerSpec& layer : spec.layers) {
    const model::AttentionSpec& attention = layer.attention;
    if (attention.num_heads % strategy.tensor != 0) {
      return fmt::format("{} heads cannot be divided by {}", attention.num_heads, strategy.tensor);
    }
    const int kv_heads = attention.num_kv_heads;
    const bool divides = kv_heads % strategy.tensor == 0 || strategy.tensor % kv_heads == 0;
    if (!attention.latent && !divides) {
      return fmt::format("{} KV heads can neither be divided by {} nor each be copied as often",
                         kv_heads, strategy.tensor);
    }
  }
  return {};
}

std::string WhyNot(const model::ModelSpec& spec, const ExpertStrategy& strategy) {
  for (const model::LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    const model::MoeSpec& moe = *layer.moe;
    if (moe.num_experts % strategy.expert != 0) {
      return fmt::format("{} experts cannot be divided by {}", moe.num_experts, strategy.expert);
    }
    if (moe.intermediate_size % strategy.tensor != 0) {
      return fmt::format("the intermediate size {} cannot be divided by {}", moe.intermediate_size,
                         strategy.tensor);
    }
    if (std::string reason = WhySplitsGroups(moe, strategy.expert); !reason.empty()) return reason;
  }
  return {};
}

class Search {
 public:
  explicit Search(const HybridQuestion& question) : question_(question) {}

  Result<HybridAnswer> Run() {
    if (const Status listed = ListStrategies(); !listed) return listed.error();
    SetSteps();
    SetMemory();
    if (const Status priced = PricePhases(); !priced) return priced.error();
    if (const Status priced = PriceTransitions(); !priced) return priced.error();
    ListCandidates();
    const Result<std::optional<HybridTriple>> solved = SolveHybrid(answer_.program);
    if (!solved) return solved.error();
    if (!*solved) return WhyNothing();
    for (size_t i = 0; i < answer_.candidates.size(); ++i) {
      if (answer_.candidates[i].triple == **solved) answer_.chosen = static_cast<int>(i);
    }
    return std::move(answer_);
  }

 private:
  Status ListStrategies() {
    const int ranks = question_.num_ranks;
    if (ranks < 1 || (ranks & (ranks - 1)) != 0) {
      return Error{
          fmt::format("hybrid parallelism divides by powers of two, and {} ranks are none; "
                      "take fewer",
                      ranks)};
    }
    if (question_.batch < 1 || question_.prompt_tokens < 1 || question_.gen_tokens < 1) {
      return Error{"a workload has at least one sequence, one token of prompt and one generated"};
    }
    for (int degree = 1; degree <= ranks; degree *= 2) {
      const AttentionStrategy attention = {.tensor = degree, .data = ranks / degree};
      const ExpertStrategy experts = {.expert = degree, .tensor = ranks / degree};
      Keep(attention, answer_.attention);
      Keep(experts, answer_.experts);
    }
    if (!answer_.attention.empty() && !answer_.experts.empty()) return {};
    std::string reasons;
    for (const PrunedStrategy& pruned : answer_.pruned) {
      reasons += fmt::format("; {}: {}", pruned.strategy, pruned.reason);
    }
    return Error{fmt::format("the model cannot be divided among {} ranks{}", ranks, reasons)};
  }

  template <class Strategy>
  void Keep(const Strategy& strategy, std::vector<Strategy>& kept) {
    std::string reason = WhyNot(question_.spec, strategy);
    if (reason.empty()) {
      kept.push_back(strategy);
    } else {
      answer_.pruned.push_back({ToText(strategy), std::move(reason)});
    }
  }

  // Prompts are computed in equal steps, of which the mean one stands for all; so does the
  // generated token in the middle for all generated ones. Each group of ranks has sequences of its
  // own, so the fewer groups there are, the more steps they take.
  void SetSteps() {
    for (const AttentionStrategy& strategy : answer_.attention) {
      answer_.prefill.push_back(PrefillStep(strategy.data));
    }
    answer_.decode = {.batch = question_.batch,
                      .tokens = 1,
                      .first_position = question_.prompt_tokens + (question_.gen_tokens - 1) / 2.0,
                      .prompt_length = double(question_.prompt_tokens)};
    answer_.program.prefill_steps = 1;
    answer_.program.decode_steps = question_.gen_tokens;
    answer_.program.num_layers = question_.spec.num_layers();
  }

  PhaseStep PrefillStep(int num_groups) const {
    const double prompt = question_.prompt_tokens;
    const auto steps = [&](double sequences, double most_tokens) {
      return most_tokens > 0 ? std::ceil(sequences * prompt / most_tokens) : 1;
    };
    const double least =
        std::max(steps(std::ceil(double(question_.batch) / num_groups), question_.step_tokens),
                 steps(question_.batch, question_.total_step_tokens));
    // Whole tokens of each sequence, as steps are simulated.
    const double tokens = std::max(1.0, std::floor(prompt / std::max(1.0, least)));
    return {.batch = question_.batch,
            .tokens = tokens,
            .first_position = (prompt - tokens) / 2,
            .prompt_length = prompt};
  }

  strategy::Layout LayoutOf(int a, int e) const {
    return planner::LayoutOf(answer_.attention[a], answer_.experts[e], question_.spec,
                             question_.divides_rest);
  }

  void SetMemory() {
    MemoryRow prefill{.name = "prefill", .capacity = question_.memory_bytes};
    MemoryRow decode{.name = "decode", .capacity = question_.memory_bytes};
    const size_t num_experts = answer_.experts.size();
    prefill.decode.assign(num_experts, 0);
    decode.prefill.assign(num_experts, 0);
    // What is divided among all ranks, and counted whole below.
    const double divided =
        question_.divides_rest ? (1 - 1.0 / question_.num_ranks) * question_.bytes.weights : 0;
    for (size_t a = 0; a < answer_.attention.size(); ++a) {
      const AttentionBytes of =
          BytesOf(question_.spec, answer_.attention[a], question_.bytes, answer_.prefill[a],
                  answer_.decode, double(question_.prompt_tokens) + question_.gen_tokens);
      const double weights = of.weights - divided * HeadElements(question_.spec);
      prefill.attention.push_back(weights + of.kv + of.prefill_activations);
      decode.attention.push_back(weights + of.kv + of.decode_activations);
    }
    const PhaseStep& most = *std::ranges::max_element(answer_.prefill, {}, &PhaseStep::tokens);
    for (size_t e = 0; e < num_experts; ++e) {
      const ExpertBytes of =
          BytesOf(question_.spec, answer_.experts[e], question_.bytes, most, answer_.decode);
      const double shared = LayoutOf(0, static_cast<int>(e)).divides_shared
                                ? divided * SharedElements(question_.spec)
                                : 0;
      prefill.prefill.push_back(of.weights - shared + of.prefill_activations);
      decode.decode.push_back(of.weights - shared + of.decode_activations);
    }
    answer_.program.memory = {std::move(prefill), std::move(decode)};
  }

  Status PricePhases() {
    if (const Status priced = PricePrefill(); !priced) return priced;
    Result<PhaseTables> tables = PriceLayers(LayersOf(answer_.attention), answer_.decode);
    if (!tables) return tables.error();
    answer_.program.decode = std::move(tables->layer);
    // The ends of a step are attention's, spread over the layers.
    for (size_t a = 0; a < tables->ends.size(); ++a) {
      answer_.program.decode.attention[a] += tables->ends[a] / answer_.program.num_layers;
    }
    return {};
  }

  // All steps of the prompts together, since strategies of attention have as many as they have.
  Status PricePrefill() {
    PhaseCosts& costs = answer_.program.prefill;
    for (size_t a = 0; a < answer_.attention.size(); ++a) {
      const std::vector<AttentionStrategy> strategy = {answer_.attention[a]};
      const Result<PhaseTables> tables = PriceLayers(LayersOf(strategy), answer_.prefill[a]);
      if (!tables) return tables.error();
      const double steps = question_.prompt_tokens / answer_.prefill[a].tokens;
      if (a == 0) {
        costs.experts = tables->layer.experts;
        for (double& seconds : costs.experts) seconds *= steps;
      }
      const double attention =
          steps * (tables->layer.attention[0] + tables->ends[0] / answer_.program.num_layers);
      std::vector<double>& between = costs.between.emplace_back();
      for (size_t e = 0; e < answer_.experts.size(); ++e) {
        const double layer = tables->layer.LayerSeconds(0, static_cast<int>(e)) +
                             tables->ends[0] / answer_.program.num_layers;
        between.push_back(steps * layer - attention - costs.experts[e]);
      }
      costs.attention.push_back(attention);
    }
    return {};
  }

  LayerCostsQuestion LayersOf(const std::vector<AttentionStrategy>& attention) const {
    strategy::Pipeline pipeline;
    pipeline.overlap = question_.overlap;
    return {.spec = question_.spec,
            .attention = attention,
            .experts = answer_.experts,
            .bytes = question_.bytes,
            .pipeline = pipeline,
            .shares = question_.shares,
            .divides_rest = question_.divides_rest,
            .price_of = question_.price_of,
            .price = question_.price};
  }

  Status PriceTransitions() {
    const size_t num_experts = answer_.experts.size();
    answer_.program.transition.assign(
        answer_.attention.size(),
        std::vector(num_experts, std::vector<double>(num_experts, kForbidden)));
    ways_.assign(answer_.program.transition.size() * num_experts * num_experts, Way());
    for (size_t p = 0; p < num_experts; ++p) {
      for (size_t d = 0; d < num_experts; ++d) {
        if (const Status priced = PriceTransition(static_cast<int>(p), static_cast<int>(d));
            !priced) {
          return priced;
        }
      }
    }
    return {};
  }

  // What a triple's transition is done by, and why another way was not taken.
  struct Way {
    std::string by = {};
    std::string rejected = {};
    double staging_bytes = 0;
  };

  size_t PlaceOf(const HybridTriple& triple) const {
    const size_t num_experts = answer_.experts.size();
    return (triple.attention * num_experts + triple.prefill) * num_experts + triple.decode;
  }

  Status PriceTransition(int p, int d) {
    const int num_attention = answer_.program.num_attention();
    auto& transition = answer_.program.transition;
    if (p == d) {
      for (int a = 0; a < num_attention; ++a) transition[a][p][d] = 0;
      return {};
    }
    if (question_.transition == TransitionKind::kNone) {
      for (int a = 0; a < num_attention; ++a) {
        ways_[PlaceOf({a, p, d})].rejected = "both phases are to have one layout of the experts";
      }
      return {};
    }
    // Attention has no part in what moves; any that the ranks can have will do.
    const AttentionStrategy any = {.tensor = 1, .data = question_.num_ranks};
    const Result<TransitionCost> cost = planner::PriceTransition(
        question_.spec, planner::LayoutOf(any, answer_.experts[p]),
        planner::LayoutOf(any, answer_.experts[d]), question_.bytes.weights, question_.price);
    if (!cost) return cost.error();
    for (int a = 0; a < num_attention; ++a) SetTransition({a, p, d}, *cost);
    return {};
  }

  void SetTransition(const HybridTriple& triple, const TransitionCost& cost) {
    const auto& [a, p, d] = triple;
    const HybridProgram& program = answer_.program;
    Way& way = ways_[PlaceOf(triple)];
    double& seconds = answer_.program.transition[a][p][d];
    // While layers move, one after the other, a layer is there in both layouts.
    const double layer_bytes = cost.missing_bytes / program.num_layers;
    const double held = program.memory[0].BytesOf(triple);
    if (held + layer_bytes <= question_.memory_bytes) {
      seconds = cost.reshard_seconds;
      way = {.by = "re-shard", .staging_bytes = layer_bytes};
    } else {
      way.rejected = fmt::format("a layer in both layouts is beyond the memory of {}",
                                 FormatBytes(static_cast<uint64_t>(question_.memory_bytes)));
    }
    if (question_.transition != TransitionKind::kUpload ||
        !(question_.upload_bytes_per_second > 0)) {
      return;
    }
    const double backup = Int4BackupBytes(question_.spec);
    const bool fits_host =
        question_.host_memory_bytes <= 0 || backup <= question_.host_memory_bytes;
    const double int4_bytes = cost.missing_bytes * kInt4Bytes / question_.bytes.weights;
    if (!fits_host || held + int4_bytes > question_.memory_bytes) return;
    const double prefill_seconds =
        program.num_layers * program.prefill_steps * program.prefill.LayerSeconds(a, p);
    const double upload = int4_bytes / question_.upload_bytes_per_second;
    // Read in 4 bits and written in the weights' format.
    const double dequantise = question_.pass_seconds(int4_bytes + cost.missing_bytes);
    const double by_upload = std::max(0.0, upload - prefill_seconds) + dequantise;
    if (by_upload < seconds) {
      seconds = by_upload;
      way = {.by = "upload", .staging_bytes = int4_bytes};
    }
  }

  void ListCandidates() {
    const HybridProgram& program = answer_.program;
    for (int a = 0; a < program.num_attention(); ++a) {
      for (int p = 0; p < program.num_experts(); ++p) {
        for (int d = 0; d < program.num_experts(); ++d) {
          answer_.candidates.push_back(CandidateOf({a, p, d}));
        }
      }
    }
    std::stable_sort(answer_.candidates.begin(), answer_.candidates.end(),
                     [](const HybridCandidate& x, const HybridCandidate& y) {
                       return std::pair(!x.rejected.empty(), x.seconds) <
                              std::pair(!y.rejected.empty(), y.seconds);
                     });
  }

  HybridCandidate CandidateOf(const HybridTriple& triple) const {
    const auto& [a, p, d] = triple;
    const HybridProgram& program = answer_.program;
    const Way& way = ways_[PlaceOf(triple)];
    HybridCandidate candidate{
        .triple = triple,
        .prefill = LayoutOf(a, p),
        .decode = LayoutOf(a, d),
        .seconds = SecondsOf(program, triple),
        .prefill_seconds =
            program.num_layers * program.prefill_steps * program.prefill.LayerSeconds(a, p),
        .token_seconds = program.num_layers * program.decode.LayerSeconds(a, d),
        .transition_seconds = program.transition[a][p][d],
        .transition_by = way.by};
    candidate.memory_bytes = way.staging_bytes + program.memory[0].BytesOf(triple);
    candidate.memory_bytes = std::max(candidate.memory_bytes, program.memory[1].BytesOf(triple));
    if (const MemoryRow* row = RowExceeded(program, triple)) {
      candidate.rejected = fmt::format(
          "{} in {}, and a rank has {}", FormatBytes(static_cast<uint64_t>(row->BytesOf(triple))),
          row->name, FormatBytes(static_cast<uint64_t>(row->capacity)));
    } else if (!std::isfinite(candidate.transition_seconds)) {
      candidate.rejected = way.rejected;
    }
    return candidate;
  }

  Error WhyNothing() const {
    const auto least = std::min_element(answer_.candidates.begin(), answer_.candidates.end(),
                                        [](const HybridCandidate& x, const HybridCandidate& y) {
                                          return x.memory_bytes < y.memory_bytes;
                                        });
    return Error{fmt::format(
        "the model does not fit {} ranks of {}: attention={}, {} needs least, {} each; take more "
        "ranks, fewer sequences or weights of fewer bits",
        question_.num_ranks, FormatBytes(static_cast<uint64_t>(question_.memory_bytes)),
        ToText(answer_.attention[least->triple.attention]).substr(10),
        ToText(answer_.experts[least->triple.prefill]),
        FormatBytes(static_cast<uint64_t>(least->memory_bytes)))};
  }

  const HybridQuestion& question_;
  HybridAnswer answer_;
  std::vector<Way> ways_;  // by triple
};

}  // namespace

std::string WhySplitsGroups(const model::MoeSpec& moe, int num_shares) {
  if (moe.top_expert_groups >= moe.num_expert_groups) return {};
  const int group = moe.num_experts / moe.num_expert_groups;
  int split = 0;  // groups that lie on several ranks
  int most = 1;   // ranks of one group
  for (int first = 0; first < moe.num_experts; first += group) {
    int shares = 0;
    for (int share = 0; share < num_shares; ++share) {
      const strategy::Part part = strategy::PartOf(moe.num_experts, share, num_shares);
      if (part.first < first + group && part.first + part.size > first) ++shares;
    }
    if (shares > 1) ++split;
    most = std::max(most, shares);
  }
  if (split == 0) return {};
  return fmt::format(
      "a token's experts are in {} of {} groups; {} of them would be split over up to {} ranks, "
      "and a token's experts lie on up to {}",
      moe.top_expert_groups, moe.num_expert_groups, split, most,
      std::min({moe.top_k, moe.top_expert_groups * most, num_shares}));
}

std::string ToText(const AttentionStrategy& strategy) {
  return "attention=" + DegreesText("tp", strategy.tensor, "dp", strategy.data);
}

std::string ToText(const ExpertStrategy& strategy) {
  return "experts=" + DegreesText("ep", strategy.expert, "tp", strategy.tensor);
}

Result<HybridAnswer> SearchHybrid(const HybridQuestion& question) { return Search(question).Run(); }

}  // namespace convene::planner
