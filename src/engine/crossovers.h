// From how many rows or tokens on one of two forms of the same work is the faster one: as `convene
// measure` found it, and the same on all ranks. Measures nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "hardware/cpu_identity.h"
#include "hardware/profile.h"
#include "kernels/streaming_choice.h"
#include "strategy/role.h"

namespace convene::engine {

struct Crossovers {
  int32_t dense_from_rows = 0;                               // as runtime::TransformerOptions
  int32_t expand_from_tokens = strategy::kExpandFromTokens;  // as strategy::AttentionRole

  bool operator==(const Crossovers&) const = default;
};

// What a rank computes with, by which a profile of its machine is told from others.
struct ComputesWith {
  hardware::CpuIdentity cpu;
  std::string isa;  // the name of its kernels
  std::vector<int> cpus;
};
// Of this process: reads the topology for the kind of CPU, which takes some 10 ms. Where that fails
// it is not known, and no profile is of it.
ComputesWith ComputesHereWith(const char* isa, std::vector<int> cpus);

// Whether the profile was measured on a CPU of this kind with these kernels and on all of these
// CPUs. One that does not say of which kind it is, as those of earlier versions, is of none.
bool IsOf(const hardware::Profile& profile, const ComputesWith& here);

// Those of `profile` if it is of this machine (IsOf); the defaults otherwise. It may have been
// measured on more CPUs: ranks that share a host have some of them each, and --threads may take
// fewer. Both forms use all threads, so the point where they cross hardly moves with their number,
// and a sequence's logits shall not depend on it at all.
Crossovers CrossoversOf(const std::optional<hardware::Profile>& profile, const ComputesWith& here);

// How panels of weights are read, as it was measured on this machine; unset where it was not. Ranks
// need not agree: it changes no result.
std::optional<kernels::StreamingChoice> StreamingOf(const std::optional<hardware::Profile>& profile,
                                                    const ComputesWith& here);

// *Collective.* Rank 0's on all ranks: the two forms of latent attention round differently, so a
// sequence's logits would depend on the rank that computes it. `group` may be null.
Crossovers AgreeOnCrossovers(comm::Group* group, Crossovers mine);

}  // namespace convene::engine
