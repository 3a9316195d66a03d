#include "evaluate/known_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/message.h"
#include "base/units.h"
#include "base/version.h"
#include "comm/from_rank_zero.h"
#include "cost/doubtful_costs.h"
#include "evaluate/machine_profile_file.h"
#include "evaluate/measure_steps.h"
#include "hardware/control_group.h"
#include "hardware/profile.h"
#include "hardware/topology.h"

namespace convene::evaluate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kAgreeing = "agreeing on costs";

// A link that is faster or slower than this many times is another one: less it wanders. Where it
// seems to be one it is looked at again, since somebody may have had the cores for a moment.
constexpr double kOtherLink = 3;
// Seconds of a byte. Faster links are memory that ranks share: a look at it reads the same bytes
// from a cache again and again, five times as fast as rows are exchanged on a Xeon.
constexpr double kFastLink = 1 / 2.5e9;
constexpr int kMostLooks = 3;
constexpr size_t kProbeBytes = size_t{1} << 18;  // of a message
// In a row: a network may let a burst through faster than it goes on.
constexpr int kProbes = 16;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// *Collective*: seconds of each byte, all ranks sending to all others.
double ProbeLink(comm::Group& group) {
  const auto num_ranks = static_cast<size_t>(group.size());
  std::vector<std::byte> out(kProbeBytes);
  std::vector<std::byte> in(kProbeBytes * num_ranks);
  std::vector<std::span<const std::byte>> send(num_ranks);
  std::vector<std::span<std::byte>> receive(num_ranks);
  for (size_t other = 0; other < num_ranks; ++other) {
    if (other == static_cast<size_t>(group.rank())) continue;
    send[other] = out;
    receive[other] = std::span(in).subspan(kProbeBytes * other, kProbeBytes);
  }
  group.Barrier("looking at the link");
  const auto exchange = [&] {
    const auto one = group.StartAllToAll(0, send, receive, "looking at the link");
    while (!one->Test()) {
    }
  };
  exchange();  // opens connections
  const auto start = Clock::now();
  for (int i = 0; i < kProbes; ++i) exchange();
  const auto bytes = static_cast<double>(kProbeBytes * num_ranks * (num_ranks - 1) * kProbes);
  return SecondsSince(start) / bytes;
}

// The kept costs, if they are of this machine and link.
struct Kept {
  std::optional<engine::KnownCosts> costs = {};
  std::string why_not = {};
  bool is_other_link = false;  // and all else fits
};

Kept KeptCosts(const engine::CostsRequest& request, const std::string& path,
               double seconds_per_byte) {
  const int num_ranks = request.group.size();
  const int num_threads = request.pool.size();
  const std::string_view weights = kernels::Name(request.weights);
  const Result<cost::MachineProfile> profile = KeptProfile({.num_ranks = num_ranks,
                                                            .num_threads = num_threads,
                                                            .weights = std::string(weights),
                                                            .int8_kv = request.int8_kv},
                                                           request.kernels.name, path);
  if (!profile) return {.why_not = profile.error().message};
  const cost::StepCosts* const costs = profile->CostsOf(num_ranks, num_threads, weights);
  const double kept = costs->exchange.lasting_seconds_per_byte();
  if (!(kept > 0)) {
    return {.why_not =
                "by the kept costs exchanges take no longer the more bytes they move, so other "
                "work must have disturbed their measurement"};
  }
  const bool differ = kept > kOtherLink * seconds_per_byte || seconds_per_byte > kOtherLink * kept;
  if (differ && std::max(kept, seconds_per_byte) > kFastLink) {
    return {.why_not = fmt::format("the kept costs are of a link of {:.0f} MB/s, and this one has "
                                   "{:.0f}",
                                   1e-6 / kept, 1e-6 / seconds_per_byte),
            .is_other_link = true};
  }
  engine::KnownCosts known{.ranks = *costs,
                           .source = costs->date.empty()
                                         ? std::string("kept costs")
                                         : fmt::format("costs measured {}", costs->date)};
  if (LocalRankFromLauncher().count == num_ranks) {
    const cost::StepCosts* alone = profile->CostsOf(1, num_ranks * num_threads, weights);
    const bool fits = alone != nullptr && alone->version == costs->version &&
                      (alone->int8_attention || !request.int8_kv);
    if (fits) known.one_process = *alone;
  }
  return {.costs = std::move(known)};
}

// Few experts of a usual size: how many there are says little about what one of them costs. All
// kinds of tasks are in it, whatever model comes next.
MeasureStepsOptions QuickOptions(const engine::CostsRequest& request) {
  const int num_ranks = request.group.size();
  const ModelShape plain{.hidden = 1024,
                         .heads = 4 * num_ranks,
                         .head_dim = 128,
                         .layers = 2,
                         .experts = std::max(16, 2 * num_ranks),
                         .top_k = 4,
                         .intermediate = 128 * std::max(4, num_ranks),
                         .shared_intermediate = 128 * num_ranks,
                         .vocab = 8192};
  ModelShape latent = plain;
  latent.hidden = 1536;
  latent.heads = 6 * num_ranks;
  latent.latent = 512;
  latent.dense_intermediate = 1024 * num_ranks;
  // Products before a norm over all heads are tasks of their own where ranks divide the heads.
  ModelShape normed = plain;
  normed.qk_norm = model::QkNorm::kWholeProjection;
  normed.layers = 1;
  normed.shared_intermediate = 0;
  std::vector<StepCase> cases = {{1, 512, 0}, {1, 128, 0}, {1, 16, 0},  {1, 128, 640},
                                 {1, 1, 300}, {4, 1, 600}, {16, 1, 200}};
  for (StepCase& each : cases) each.batch *= num_ranks;
  return {.weights = request.weights,
          .wire = request.wire,
          .rounds = 2,
          .shapes = {plain, latent, normed},
          .cases = std::move(cases),
          .ledger = &request.ledger};
}

// Of the machine itself nothing was measured, so it has no CPUs whose figures others would take.
// Not kept beside costs of another instruction set, which somebody tries here: the profile would be
// of both.
Status Keep(const cost::StepCosts& costs, const engine::CostsRequest& request,
            const std::string& path) {
  const Result<hardware::Topology> topology = hardware::ReadTopology();
  if (!topology) return topology.error();
  cost::MachineProfile profile;
  profile.machine.SetCpu(topology->cpu);
  profile.machine.isa = request.kernels.name;
  profile.machine.last_level_cache_bytes = topology->last_level_cache_bytes();
  profile.machine.date = hardware::CurrentDate();
  profile.steps = {costs};
  const Result<cost::MachineProfile> kept = LoadMachineProfile(path);
  // Another version's, or damaged: somebody may want what is in it.
  if (!kept && kept.error().kind != ErrorKind::kNotFound) {
    return Error{fmt::format("{} is there and cannot be read; remove it", path)};
  }
  if (kept) {
    const hardware::Profile& machine = kept->machine;
    const std::string why = WhyAnotherMachine(machine, topology->cpu, machine.isa);
    if (why.empty() && machine.isa != profile.machine.isa) {
      return Error{
          fmt::format("{} is of {}, and these of {}", path, machine.isa, profile.machine.isa)};
    }
    if (!why.empty()) PrintNote("the profile in {} is replaced: {}\n", path, why);
  }
  return hardware::SaveProfileJson(cost::ToJson(WithKept(std::move(profile), path)), path);
}

void KeepOrSay(const cost::StepCosts& costs, const engine::CostsRequest& request,
               const std::string& path) {
  if (const Status saved = Keep(costs, request, path); !saved) {
    PrintNote("costs are not kept, and will be measured again: {}\n", saved.error().message);
  }
}

}  // namespace

Result<cost::MachineProfile> KeptProfile(const planner::RankSetup& setup, std::string_view isa,
                                         const std::string& path) {
  Result<cost::MachineProfile> profile = LoadMachineProfile(path);
  const Result<hardware::Topology> topology = hardware::ReadTopology();
  if (!profile && profile.error().kind != ErrorKind::kNotFound) return profile;
  if (!profile || !topology) return Error{"no profile is kept"};
  const hardware::Profile& machine = profile->machine;
  const std::string why = WhyAnotherMachine(machine, topology->cpu, isa);
  if (!why.empty()) {
    return Error{"the kept profile is of another machine or instruction set: " + why};
  }
  const cost::StepCosts* costs =
      profile->CostsOf(setup.num_ranks, setup.num_threads, setup.weights);
  if (costs == nullptr) {
    return Error{fmt::format("the kept profile has no costs of {} with {} each and weights in {}",
                             FormatCount(static_cast<uint64_t>(setup.num_ranks), "rank"),
                             FormatCount(static_cast<uint64_t>(setup.num_threads), "thread"),
                             setup.weights)};
  }
  if (costs->version != kVersion) {
    return Error{fmt::format(
        "the kept costs were measured by {}, and this is {}",
        costs->version.empty() ? "an unknown version of convene" : "convene " + costs->version,
        kVersion)};
  }
  if (setup.int8_kv && !costs->int8_attention) {
    return Error{"the kept costs have none of attention with an int8 KV cache"};
  }
  return profile;
}

Result<engine::KnownCosts> KnownStepCosts(const engine::CostsRequest& request,
                                          const KnownCostsOptions& options) {
  Kept kept;
  for (int looks = 0; looks < kMostLooks; ++looks) {
    const double seconds_per_byte = ProbeLink(request.group);
    if (request.group.rank() == 0) {
      kept = KeptCosts(request, options.profile_path, seconds_per_byte);
    }
    if (comm::FromRankZero(request.group, kept.costs.has_value(), kAgreeing)) {
      return kept.costs ? *std::move(kept.costs) : engine::KnownCosts{};
    }
    if (!comm::FromRankZero(request.group, kept.is_other_link, kAgreeing)) break;
  }
  const bool speaks = request.group.rank() == 0;
  if (speaks) PrintNote("measuring what steps cost here, once, since {}\n", kept.why_not);
  const std::string quota = cost::WordsOfQuota(request.group.rank(), request.pool.size(),
                                               hardware::ControlGroupCpuQuota());
  if (!quota.empty()) PrintNote("{}\n", quota);
  const auto start = Clock::now();
  MeasureStepsOptions quick = QuickOptions(request);
  if (!options.shapes.empty()) quick.shapes = options.shapes;
  if (!options.cases.empty()) quick.cases = options.cases;
  quick.seconds = options.seconds;
  quick.make_device = options.make_device;
  Result<cost::StepCosts> measured =
      MeasureSteps(request.group, request.pool, request.kernels, quick);
  if (!measured) return measured.error();
  if (speaks) {
    const std::string doubt = cost::WordsOfDoubt(std::span(&*measured, 1));
    if (!doubt.empty()) PrintNote("{}\n", doubt);
    KeepOrSay(*measured, request, options.profile_path);
  }
  return engine::KnownCosts{
      .ranks = *std::move(measured),
      .source = fmt::format("costs measured just now in {:.1f} s, since {}; mpirun convene measure "
                            "measures better ones",
                            SecondsSince(start), kept.why_not)};
}

engine::StepCostsSource KeptOrMeasuredCosts() {
  return [](const engine::CostsRequest& request) {
    return KnownStepCosts(request, {.profile_path = hardware::ProfilePath()});
  };
}

}  // namespace convene::evaluate
