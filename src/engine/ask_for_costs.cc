#include "engine/ask_for_costs.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "comm/agree.h"
#include "engine/crossovers.h"
#include "engine/rank_options.h"
#include "hardware/profile.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "kernels/streaming_choice.h"
#include "memory/ledger.h"

namespace convene::engine {
namespace {

// What a rank measures with: what a model that it loads will compute with.
struct Means {
  kernels::KernelSet kernels;
  std::optional<kernels::StreamingChoice> streaming;  // of the kernels, once they are in place
  std::vector<int> cpus;
  memory::Tier memory;
};

Result<Means> FindMeans(const CostsWish& wish) {
  const Result<const kernels::KernelSet*> kernels = kernels::ChooseKernels();
  if (!kernels) return kernels.error();
  Result<std::vector<int>> cpus =
      hardware::CpusForThisRank(LocalRankFromLauncher(), wish.num_threads);
  if (!cpus) return cpus.error();
  Result<memory::Tier> tier = memory::HostTier(LocalRankFromLauncher().count, *cpus);
  if (!tier) return tier.error();
  // What is measured with counts, too.
  LimitTo(wish.memory_budget, &*tier);
  Means means{
      .kernels = **kernels, .streaming = {}, .cpus = *std::move(cpus), .memory = *std::move(tier)};
  const Result<hardware::Profile> kept = hardware::LoadProfile(hardware::ProfilePath());
  if (kept) {
    means.streaming = StreamingOf(*kept, ComputesHereWith(means.kernels.name, means.cpus));
  }
  return means;
}

Result<KnownCosts> FindCosts(comm::Group& group, const CostsWish& wish,
                             const StepCostsSource& source) {
  Result<Means> means = FindMeans(wish);
  const Status mine = means ? Status() : Status(means.error());
  if (const Status all = comm::AgreeOnSuccess(group, mine); !all) return all.error();
  if (means->streaming) means->kernels.streaming = &*means->streaming;
  hardware::ThreadPool pool(std::move(means->cpus));
  if (const Status all = comm::AgreeOnSuccess(group, pool.started()); !all) return all.error();
  std::vector<uint64_t> memory;
  for (const std::string& bytes : comm::GatherTexts(
           group, std::to_string(means->memory.budget_bytes), "what memory ranks have")) {
    memory.push_back(std::strtoull(bytes.c_str(), nullptr, 10));
  }
  memory::Ledger ledger(std::move(means->memory));
  Result<KnownCosts> known = source({.group = group,
                                     .pool = pool,
                                     .kernels = means->kernels,
                                     .ledger = ledger,
                                     .weights = wish.weights,
                                     .wire = wish.wire,
                                     .int8_kv = wish.int8_kv});
  if (known) known->memory_of_ranks = std::move(memory);
  return known;
}

}  // namespace

Result<KnownCosts> AskForCosts(comm::Group& group, const CostsWish& wish,
                               const StepCostsSource& source) {
  AnnounceCosts(group, wish);
  return FindCosts(group, wish, source);
}

void AnswerCosts(comm::Group& group, const CostsWish& wish, const StepCostsSource& source) {
  static_cast<void>(FindCosts(group, wish, source));
}

}  // namespace convene::engine
