#include "planner/disaggregated_roles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/units.h"
#include "planner/layer_shapes.h"
#include "planner/share_pass.h"

namespace convene::planner {
namespace {

Line Slower(const Line& a, const Line& b) {
  return {.once = std::max(a.once, b.once), .per_row = std::max(a.per_row, b.per_row)};
}

class RoleSearch {
 public:
  explicit RoleSearch(const RolesQuestion& question)
      : question_(question), num_experts_(FewestExperts(question.spec)) {
    for (const RankTraits& rank : question.ranks) {
      const auto found = std::find(kinds_.begin(), kinds_.end(), rank);
      kind_of_.push_back(static_cast<int>(found - kinds_.begin()));
      if (found == kinds_.end()) kinds_.push_back(rank);
    }
  }

  Result<std::vector<RolesChoice>> All() {
    std::vector<RolesChoice> choices;
    std::vector<int> counts(kinds_.size(), 0);  // by kind: ranks with attention
    do {
      Result<std::optional<RolesChoice>> choice = Try(RanksOf(counts), /*by_rate=*/true);
      if (!choice) return choice.error();
      if (*choice) choices.push_back(**std::move(choice));
    } while (Next(counts));
    if (choices.empty()) return NothingFits();
    std::stable_sort(
        choices.begin(), choices.end(),
        [](const RolesChoice& a, const RolesChoice& b) { return a.seconds() < b.seconds(); });
    return choices;
  }

  Result<RolesChoice> BestEqual() {
    std::optional<RolesChoice> best;
    for (int attention = 1; attention < num_ranks(); ++attention) {
      std::vector<int> ranks(static_cast<size_t>(attention));
      std::iota(ranks.begin(), ranks.end(), 0);
      Result<std::optional<RolesChoice>> choice = Try(ranks, /*by_rate=*/false);
      if (!choice) return choice.error();
      if (*choice && (!best || (*choice)->seconds() < best->seconds())) best = **std::move(choice);
    }
    if (!best) return NothingFits();
    return *best;
  }

 private:
  int num_ranks() const { return static_cast<int>(question_.ranks.size()); }
  const RankTraits& traits(int rank) const { return question_.ranks[static_cast<size_t>(rank)]; }

  // The next numbers of ranks with attention, as a number whose digits they are; false: none.
  bool Next(std::vector<int>& counts) const {
    for (size_t kind = 0; kind < counts.size(); ++kind) {
      if (counts[kind] < std::count(kind_of_.begin(), kind_of_.end(), static_cast<int>(kind))) {
        ++counts[kind];
        return true;
      }
      counts[kind] = 0;
    }
    return false;
  }

  // The first so many ranks of each kind.
  std::vector<int> RanksOf(std::vector<int> counts) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < num_ranks(); ++rank) {
      if (counts[static_cast<size_t>(kind_of_[rank])]-- > 0) ranks.push_back(rank);
    }
    return ranks;
  }

  // Of ranks all of this kind.
  Result<DisaggregatedLines> LinesOf(int attention_ranks, int kind) {
    const auto key = std::pair(attention_ranks, kind);
    const auto found = lines_.find(key);
    if (found != lines_.end()) return found->second;
    Result<std::unique_ptr<StepPricer>> pricer = question_.pricer(kinds_[kind].machine);
    if (!pricer) return pricer.error();
    std::vector<strategy::SequenceRows> sequences = question_.sequences;
    sequences.resize(static_cast<size_t>(SequencesOf(attention_ranks)));
    Result<FittedLines> fitted = FitDisaggregatedLines(
        {.spec = question_.spec,
         .roles = strategy::Roles::Disaggregated(attention_ranks, num_ranks() - attention_ranks),
         .bytes = question_.bytes,
         .shares = question_.shares,
         .sequences = std::move(sequences)},
        **pricer);
    if (!fitted) return fitted.error();
    return lines_.emplace(key, fitted->lines).first->second;
  }

  // Of each attention rank, the one with the most.
  int SequencesOf(int attention_ranks) const {
    const auto all = static_cast<int>(question_.sequences.size());
    return (all + attention_ranks - 1) / attention_ranks;
  }

  bool Fits(const RolesChoice& choice) const {
    const auto has = [](const RankTraits& rank, double bytes) {
      return rank.memory_bytes <= 0 || bytes <= rank.memory_bytes;
    };
    const auto attention = static_cast<int>(choice.attention.size());
    const double of_attention =
        question_.memory.attention_bytes + question_.memory.sequence_bytes * SequencesOf(attention);
    for (const int rank : choice.attention) {
      if (!has(traits(rank), of_attention)) return false;
    }
    const strategy::ExpertSplit split(static_cast<int>(choice.experts.size()),
                                      choice.expert_weights);
    for (size_t i = 0; i < choice.experts.size(); ++i) {
      const int own = split.experts(static_cast<int>(i), num_experts_).size;
      if (!has(traits(choice.experts[i]), own * question_.memory.expert_bytes)) return false;
    }
    return true;
  }

  // The slowest of the ranks of each group; experts by rates or evenly.
  Result<DisaggregatedLines> Combine(RolesChoice& choice, double rows, bool by_rate) {
    const auto attention = static_cast<int>(choice.attention.size());
    Result<DisaggregatedLines> lines = LinesOf(attention, kind_of_[choice.attention.front()]);
    if (!lines) return lines;
    for (const int rank : choice.attention) {
      const Result<DisaggregatedLines> own = LinesOf(attention, kind_of_[rank]);
      if (!own) return own;
      lines->attention = Slower(lines->attention, own->attention);
      lines->shared = Slower(lines->shared, own->shared);
    }
    std::vector<Line> experts;
    std::vector<double> seconds;  // of an even share
    for (const int rank : choice.experts) {
      const Result<DisaggregatedLines> own = LinesOf(attention, kind_of_[rank]);
      if (!own) return own;
      experts.push_back(own->experts);
      seconds.push_back(own->experts.At(rows));
    }
    const bool alike =
        std::adjacent_find(seconds.begin(), seconds.end(), std::not_equal_to<>()) == seconds.end();
    if (by_rate && !alike) choice.expert_weights = SharesByRate(seconds, num_experts_);
    const strategy::ExpertSplit split(static_cast<int>(experts.size()), choice.expert_weights);
    lines->experts = {};
    for (size_t i = 0; i < experts.size(); ++i) {
      // Weights that are read and rows that are computed are both in proportion to the share.
      const double share =
          split.PartOfAmount(static_cast<int>(i), static_cast<double>(experts.size()));
      lines->experts = Slower(
          lines->experts, {.once = experts[i].once * share, .per_row = experts[i].per_row * share});
    }
    return lines;
  }

  // None: these ranks cannot have attention, or the others not the experts.
  Result<std::optional<RolesChoice>> Try(const std::vector<int>& attention, bool by_rate) {
    const auto num_attention = static_cast<int>(attention.size());
    const int num_expert_ranks = num_ranks() - num_attention;
    const bool is_division = num_attention > 0 && num_expert_ranks > 0;
    if (!is_division || num_expert_ranks > num_experts_) return std::optional<RolesChoice>();
    RolesChoice choice{.attention = attention};
    for (int rank = 0; rank < num_ranks(); ++rank) {
      if (!std::binary_search(attention.begin(), attention.end(), rank)) {
        choice.experts.push_back(rank);
      }
    }
    double rows = 0;
    for (int i = 0; i < SequencesOf(num_attention); ++i) {
      rows += static_cast<double>(question_.sequences[static_cast<size_t>(i)].num_tokens);
    }
    const Result<DisaggregatedLines> lines = Combine(choice, rows, by_rate);
    if (!lines) return lines.error();
    if (!Fits(choice)) return std::optional<RolesChoice>();
    choice.lines = *lines;
    choice.step = SolveStep({.lines = *lines,
                             .attention_ranks = num_attention,
                             .rows_per_sequence = rows / SequencesOf(num_attention),
                             .most_micro_batches = question_.most_micro_batches,
                             .most_chunks = question_.most_chunks},
                            rows);
    return std::optional(std::move(choice));
  }

  Error NothingFits() const {
    return ResourceExhausted(fmt::format(
        "no division of {} into ranks with attention and ranks with experts fits their memory: "
        "attention takes {} and {} for each sequence, the experts {} together",
        FormatCount(question_.ranks.size(), "rank"),
        FormatBytes(static_cast<uint64_t>(question_.memory.attention_bytes)),
        FormatBytes(static_cast<uint64_t>(question_.memory.sequence_bytes)),
        FormatBytes(static_cast<uint64_t>(question_.memory.expert_bytes * num_experts_))));
  }

  const RolesQuestion& question_;
  int num_experts_;
  std::vector<RankTraits> kinds_;
  std::vector<int> kind_of_;                                 // by rank
  std::map<std::pair<int, int>, DisaggregatedLines> lines_;  // by attention ranks and kind
};

Status Check(const RolesQuestion& question) {
  if (question.ranks.size() < 2) {
    return Error{"attention and experts on different ranks take two ranks at least"};
  }
  if (question.sequences.empty()) return Error{"a step without sequences"};
  if (FewestExperts(question.spec) == 0) return Error{"the model has no experts"};
  return {};
}

std::string RankWords(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

Result<std::vector<RolesChoice>> RankRoles(const RolesQuestion& question) {
  if (Status checked = Check(question); !checked) return checked.error();
  return RoleSearch(question).All();
}

Result<RolesChoice> BestEqualRoles(const RolesQuestion& question) {
  if (Status checked = Check(question); !checked) return checked.error();
  return RoleSearch(question).BestEqual();
}

std::string Words(const RolesChoice& choice) {
  std::string text = fmt::format("attention on {}; experts on {}", RankWords(choice.attention),
                                 RankWords(choice.experts));
  if (!choice.expert_weights.empty()) {
    text += fmt::format(" as {}", fmt::join(choice.expert_weights, ":"));
  }
  return text;
}

}  // namespace convene::planner
