// What a search says that has nothing to choose.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.h"
#include "planner/asked_plans.h"
#include "planner/plan_search.h"
#include "planner/unmet_limits.h"

namespace convene::planner {
namespace {

// Never less than what is needed, whatever the rounding to three digits.
std::string Enough(uint64_t size_bytes) { return FormatBytes(size_bytes + size_bytes / 200); }

constexpr int kMostRanksToTell = 256;
// Shorter steps read the weights so often for a prompt that nobody wants them.
constexpr int kFewestStepTokens = 64;

// The least that any rank takes in a format, over what may be of so many ranks.
struct LeastMemory {
  std::optional<uint64_t> allowed = {};  // by plans that may be chosen
  std::optional<uint64_t> any = {};      // by those, too, that --allow layout would admit
};
// What has to be said behind a remedy that suffices by the second alone.
constexpr const char* kAndAllow = " and --allow layout";

// With attention on few ranks, so that the others have the experts.
void AddFewAttentionRanks(const PlanQuestion& question, int num_ranks,
                          std::vector<plan::Plan>& plans) {
  const Constraints& constraints = question.constraints;
  if (constraints.layout || constraints.decode_experts || question.spec.has_encoder()) return;
  for (int attention = 1; attention < num_ranks; attention *= 2) {
    plan::Plan plan = UsualPlan(question, num_ranks);
    plan.layout = {
        .attention_dp = attention, .expert_ep = num_ranks - attention, .disaggregates = true};
    if (plan::CheckLayout(plan)) plans.push_back(std::move(plan));
  }
}

// `step_tokens`: most tokens of a step; 0: as the question has it.
LeastMemory LeastMemoryOf(const PlanQuestion& question, int num_ranks, const std::string& format,
                          int num_threads, int batch, int step_tokens = 0) {
  LeastMemory least;
  std::vector<plan::Plan> plans = AskedPlans(question, num_ranks);
  AddFewAttentionRanks(question, num_ranks, plans);
  for (plan::Plan& plan : plans) {
    if (step_tokens > 0) {
      if (plan.sequences_of_group(batch) > step_tokens) continue;
      plan.step_tokens = step_tokens;
    }
    const auto memory = question.memory_of({num_ranks, num_threads, format}, plan, batch);
    if (!memory) continue;
    // Of unlike ranks, as if the one that takes most of what it has had as much as others.
    const uint64_t common = question.memory_per_rank(num_ranks);
    const double scale = memory->limit_bytes > 0 ? static_cast<double>(common) /
                                                       static_cast<double>(memory->limit_bytes)
                                                 : 1;
    const uint64_t total = memory->limit_bytes > 0
                               ? static_cast<uint64_t>(static_cast<double>(memory->total()) * scale)
                               : memory->total();
    least.any = std::min(least.any.value_or(total), total);
    const bool is_allowed = question.allowed.layout || !ChangesLayout(question, plan);
    if (is_allowed) least.allowed = std::min(least.allowed.value_or(total), total);
  }
  return least;
}

// `remedy`, with what it needs beside it; nothing where it does not suffice.
std::optional<std::string> RemedyBy(const LeastMemory& least, uint64_t available,
                                    const std::string& remedy) {
  if (least.allowed && *least.allowed <= available) return remedy;
  if (least.any && *least.any <= available) return remedy + kAndAllow;
  return std::nullopt;
}

// Of fewer than `batch` sequences, the most of which `fits` says that they have room together; 0:
// not even one has. Fewer take less.
int MostThatFit(int batch, const std::function<bool(int)>& fits) {
  int most = 0;
  int too_many = batch;
  while (too_many - most > 1) {
    const int middle = most + (too_many - most) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  return most;
}

// `paged`: one with experts on a disk, if any was looked at.
Error NotEnoughMemory(const PlanQuestion& question, const Candidate& closest,
                      const Candidate* paged) {
  const std::string& format = question.formats.back();
  const int threads = closest.setup.num_threads;
  const int batch = FewestTogether(question.workload);
  const auto least_of = [&](int ranks, const std::string& weights) {
    return LeastMemoryOf(question, ranks, weights, threads, batch);
  };
  const int most_together = MostThatFit(batch, [&](int fewer) {
    const LeastMemory least = LeastMemoryOf(question, question.num_ranks, format, threads, fewer);
    return least.allowed && *least.allowed <= question.memory_per_rank(question.num_ranks);
  });
  // With experts on a disk it does, and something else is missing.
  const bool fits_with_disk =
      paged != nullptr && paged->memory.total() > 0 && paged->memory.total() <= paged->memory_limit;
  std::string message = fmt::format(
      "{}: {} needs {} per rank, and each has {}",
      most_together > 0 ? fmt::format("there is no room for {} together",
                                      FormatCount(static_cast<uint64_t>(batch), "sequence"))
      : fits_with_disk  ? "memory has no room for the whole model"
                        : "the model fits nowhere",
      Describe(closest), Enough(closest.memory.total()), FormatBytes(closest.memory_limit));
  std::vector<std::string> remedies;
  if (most_together > 0) {
    remedies.push_back(FormatCount(static_cast<uint64_t>(most_together), "sequence"));
  }
  const LeastMemory here = least_of(question.num_ranks, format);
  if (here.any) {
    const auto with = [&](uint64_t bytes, std::string_view beside) {
      remedies.push_back(
          fmt::format("{} of memory for each of {} (--memory-per-rank){}", Enough(bytes),
                      FormatCount(static_cast<uint64_t>(question.num_ranks), "rank"), beside));
    };
    if (here.allowed) with(*here.allowed, "");
    // Where it is worth allowing.
    constexpr double kMuchLess = 0.95;
    const bool is_much_less =
        !here.allowed || static_cast<double>(*here.any) < kMuchLess * double(*here.allowed);
    if (is_much_less) with(*here.any, kAndAllow);
  }
  for (int ranks = question.num_ranks + 1; ranks <= kMostRanksToTell; ++ranks) {
    const auto remedy = RemedyBy(least_of(ranks, format), question.memory_per_rank(ranks),
                                 FormatCount(static_cast<uint64_t>(ranks), "rank"));
    if (!remedy) continue;
    remedies.push_back(*remedy);
    break;
  }
  for (const char* fewer : {"int8", "int4"}) {
    const auto& tried = question.formats;
    if (std::find(tried.begin(), tried.end(), fewer) != tried.end()) continue;
    const auto remedy =
        RemedyBy(least_of(question.num_ranks, fewer), question.memory_per_rank(question.num_ranks),
                 fmt::format("--weights {}", fewer));
    if (!remedy) continue;
    remedies.push_back(*remedy);
    break;
  }
  for (int tokens = question.step_tokens / 2;
       tokens >= kFewestStepTokens && !question.spec.has_encoder(); tokens /= 2) {
    const auto remedy =
        RemedyBy(LeastMemoryOf(question, question.num_ranks, format, threads, batch, tokens),
                 question.memory_per_rank(question.num_ranks), fmt::format("--chunk {}", tokens));
    if (!remedy) continue;
    remedies.push_back(*remedy);
    break;
  }
  for (size_t i = 0; i < remedies.size(); ++i) {
    message += (i == 0                    ? "; it would with "
                : i + 1 < remedies.size() ? ", "
                                          : " or ") +
               remedies[i];
  }
  if (remedies.empty()) {
    message +=
        fmt::format("; neither more ranks, up to {}, nor int4 weights would do", kMostRanksToTell);
  }
  if (paged != nullptr) {
    message += fmt::format("; with experts {}: {}",
                           fits_with_disk ? "read from a disk there is room for it" : "on the disk",
                           paged->reason);
  }
  return ResourceExhausted(message);
}

}  // namespace

Error WhyNothing(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  const Candidate* closest = nullptr;  // of those that do not fit
  const Candidate* unknown = nullptr;  // of those of which nothing is known
  const Candidate* other = nullptr;    // rejected for another reason
  const Candidate* changes = nullptr;  // would be one, were it allowed
  const Candidate* paged = nullptr;    // with experts on a disk
  const Candidate* fits = nullptr;     // has the memory, and is rejected for another reason
  for (const Candidate& candidate : search.candidates()) {
    const uint64_t needed = candidate.memory.total();
    if (candidate.plan.experts_in_memory && !candidate.is_ranked()) paged = &candidate;
    if (candidate.is_ranked()) {
      if (changes == nullptr || candidate.figures->score < changes->figures->score) {
        changes = &candidate;
      }
    } else if (candidate.rejected_by == "memory" && needed > candidate.memory_limit) {
      // What may not be chosen is near in words alone.
      const auto excess = [](const Candidate& one) {
        return std::pair(!one.is_allowed(), static_cast<double>(one.memory.total()) /
                                                static_cast<double>(one.memory_limit + 1));
      };
      if (closest == nullptr || excess(candidate) < excess(*closest)) closest = &candidate;
    } else if (candidate.plan.decode && !question.constraints.decode_experts) {
      // It stands on plans of one division, whose reasons say more.
    } else if (candidate.rejected_by == "setups") {
      // The most precise format and the most ranks are what is likely meant.
      const bool is_first_format =
          unknown == nullptr || candidate.setup.weights == unknown->setup.weights;
      if (is_first_format) unknown = &candidate;
    } else {
      other = &candidate;
      // Whoever came to a price had memory for the batch that was asked for.
      const bool has_memory =
          candidate.memory_limit > 0 && !candidate.plan.experts_in_memory &&
          (candidate.rejected_by == "prices" || needed <= candidate.memory_limit);
      if (has_memory && (fits == nullptr || !fits->is_allowed())) fits = &candidate;
    }
  }
  if (changes != nullptr) {
    std::string message = fmt::format(
        "the best plan there is, {}, would change what is computed, "
        "and is chosen only with --allow {}",
        Describe(*changes), fmt::join(changes->needs, ","));
    if (auto unmet = WhyLimitsAreUnmet(search)) {
      message += "; of those that compute the same, " + unmet->message;
    } else if (other != nullptr && other->needs.empty()) {
      message +=
          fmt::format("; of those that compute the same, {}: {}", Describe(*other), other->reason);
    } else if (unknown != nullptr) {
      message += fmt::format("; otherwise {}", unknown->reason);
    }
    return {message};
  }
  if (auto unmet = WhyLimitsAreUnmet(search)) return *std::move(unmet);
  if (auto too_many = WhyTooManyArrive(search)) return *std::move(too_many);
  if (closest != nullptr && fits == nullptr) return NotEnoughMemory(question, *closest, paged);
  if (fits != nullptr) other = fits;
  if (other != nullptr) {
    return {fmt::format("no plan is left; {}: {}", Describe(*other), other->reason)};
  }
  if (unknown != nullptr) return NotFound(unknown->reason);
  return {"no plan is left: options ask for what does not go together"};
}

}  // namespace convene::planner
