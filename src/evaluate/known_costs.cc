#include "evaluate/known_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "evaluate/machine_profile_file.h"
#include "evaluate/measure_steps.h"
#include "hardware/profile.h"
#include "hardware/topology.h"

namespace convene::evaluate {
namespace {

using Clock = std::chrono::steady_clock;

// A link that is faster or slower than this many times is another one: less it wanders.
constexpr double kOtherLink = 2;
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
};

Kept KeptCosts(const engine::CostsRequest& request, const std::string& path,
               double seconds_per_byte) {
  const Result<cost::MachineProfile> profile = LoadMachineProfile(path);
  const Result<hardware::Topology> topology = hardware::ReadTopology();
  if (!profile || !topology) return {.why_not = "no profile is kept"};
  const hardware::Profile& machine = profile->machine;
  if (machine.cpu_name != topology->cpu_name || machine.isa != request.kernels.name) {
    return {.why_not = "the kept profile is of another machine or instruction set"};
  }
  const int num_ranks = request.group.size();
  const int num_threads = request.pool.size();
  const std::string_view weights = kernels::Name(request.weights);
  const cost::StepCosts* costs = profile->CostsOf(num_ranks, num_threads, weights);
  if (costs == nullptr) {
    return {.why_not = fmt::format("the kept profile has no costs of {} ranks of {} with {}",
                                   num_ranks, num_threads, weights)};
  }
  const double kept = costs->exchange.lasting_seconds_per_byte();
  if (kept > kOtherLink * seconds_per_byte || seconds_per_byte > kOtherLink * kept) {
    return {.why_not = fmt::format("the kept costs are of a link of {:.0f} MB/s, and this one has "
                                   "{:.0f}",
                                   1e-6 / kept, 1e-6 / seconds_per_byte)};
  }
  engine::KnownCosts known{.ranks = *costs,
                           .source = fmt::format("costs measured {}", machine.date)};
  if (LocalRankFromLauncher().count == num_ranks) {
    const cost::StepCosts* alone = profile->CostsOf(1, num_ranks * num_threads, weights);
    if (alone != nullptr) known.one_process = *alone;
  }
  return {.costs = std::move(known)};
}

// Rank 0's.
bool Agreed(comm::Group& group, bool value) {
  std::vector<std::byte> told(1, value ? std::byte{1} : std::byte{0});
  group.Broadcast(0, &told, "agreeing on costs");
  return told[0] == std::byte{1};
}

// Few experts of a usual size: how many there are says little about what one of them costs.
MeasureStepsOptions QuickOptions(const engine::CostsRequest& request) {
  const int experts = std::max(16, 2 * request.group.size());
  const ModelShape many_heads{.hidden = 1024,
                              .heads = 8,
                              .layers = 2,
                              .experts = experts,
                              .top_k = 4,
                              .intermediate = 512,
                              .shared_intermediate = 256};
  ModelShape shared_keys = many_heads;
  shared_keys.hidden = 768;
  shared_keys.heads = 12;
  shared_keys.kv_heads = 4;
  shared_keys.head_dim = 64;
  shared_keys.intermediate = 768;
  std::vector<StepCase> cases = {{1, 512, 0}, {1, 128, 0}, {1, 16, 0}, {1, 1, 300}};
  for (StepCase& each : cases) each.batch *= request.layout.attention_dp;
  return {.weights = request.weights,
          .wire = request.wire,
          .rounds = 2,
          .shapes = {many_heads, shared_keys},
          .cases = std::move(cases),
          .layout = request.layout,
          .ledger = &request.ledger};
}

}  // namespace

Result<engine::KnownCosts> KnownStepCosts(const engine::CostsRequest& request,
                                          const KnownCostsOptions& options) {
  const double seconds_per_byte = ProbeLink(request.group);
  Kept kept;
  if (request.group.rank() == 0) kept = KeptCosts(request, options.profile_path, seconds_per_byte);
  if (Agreed(request.group, kept.costs.has_value())) {
    return kept.costs ? *std::move(kept.costs) : engine::KnownCosts{};
  }
  const auto start = Clock::now();
  MeasureStepsOptions quick = QuickOptions(request);
  if (!options.shapes.empty()) quick.shapes = options.shapes;
  if (!options.cases.empty()) quick.cases = options.cases;
  Result<cost::StepCosts> measured =
      MeasureSteps(request.group, request.pool, request.kernels, quick);
  if (!measured) return measured.error();
  return engine::KnownCosts{
      .ranks = *std::move(measured),
      .source = fmt::format("costs measured just now in {:.1f} s, since {}; mpirun convene measure "
                            "keeps better ones",
                            SecondsSince(start), kept.why_not)};
}

engine::StepCostsSource KeptOrMeasuredCosts() {
  return [](const engine::CostsRequest& request) {
    return KnownStepCosts(request, {.profile_path = hardware::ProfilePath()});
  };
}

}  // namespace convene::evaluate
