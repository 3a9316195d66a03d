#include "hardware/isa.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <initializer_list>

#include "base/environment.h"
#include "hardware/cpu_identity.h"

namespace convene::hardware {
namespace {

struct Feature {
  const char* name;
  bool usable;  // by the CPU and by the operating system, which must save its registers
};

std::string FirstMissing(std::initializer_list<Feature> needed) {
  for (const Feature& feature : needed) {
    if (!feature.usable) {
      return fmt::format("this CPU has no {}, or the operating system has not enabled it",
                         feature.name);
    }
  }
  return {};
}

// __builtin_cpu_supports wants a literal and looks at CPUID and at XGETBV.
std::string MissingForAvx2() {
  return FirstMissing({
      {"fma", __builtin_cpu_supports("fma") != 0},
      {"avx2", __builtin_cpu_supports("avx2") != 0},
  });
}

std::string MissingForAvx512() {
  return FirstMissing({
      {"fma", __builtin_cpu_supports("fma") != 0},
      {"avx512f", __builtin_cpu_supports("avx512f") != 0},
      {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
      {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
      {"avx512vl", __builtin_cpu_supports("avx512vl") != 0},
  });
}

std::string MissingForAvx512Vnni() {
  const std::string missing = MissingForAvx512();
  if (!missing.empty()) return missing;
  return FirstMissing({{"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0}});
}

std::string MissingForAvx512Bf16() {
  const std::string missing = MissingForAvx512Vnni();
  if (!missing.empty()) return missing;
  return FirstMissing({{"avx512bf16", __builtin_cpu_supports("avx512bf16") != 0}});
}

// Linux lets a process use tiles when it has asked (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18,
// TILEDATA); all its threads may then.
bool TilesAreGranted() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Not every compiler's __builtin_cpu_supports knows AMX: CPUID leaf 7, EDX bits 22, 24 and 25.
bool HasAmx() {
#if defined(__x86_64__)
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBits = 1u << 22 | 1u << 24 | 1u << 25;
  return (edx & kAmxBits) == kAmxBits;
#else
  return false;
#endif
}

std::string MissingForAmx() {
  const std::string missing = MissingForAvx512Bf16();
  if (!missing.empty()) return missing;
  if (!HasAmx()) return FirstMissing({{"amx_bf16 and amx_int8", false}});
  return TilesAreGranted() ? "" : "the operating system does not grant this process AMX tiles";
}

constexpr IsaCandidate kCandidates[] = {
    {Isa::kAmx, "amx", MissingForAmx},
    {Isa::kAvx512Bf16, "avx512_bf16", MissingForAvx512Bf16},
    {Isa::kAvx512Vnni, "avx512_vnni", MissingForAvx512Vnni},
    {Isa::kAvx512, "avx512", MissingForAvx512},
    {Isa::kAvx2, "avx2", MissingForAvx2},
    {Isa::kReference, "reference", [] { return std::string(); }},
};

}  // namespace

std::span<const IsaCandidate> IsaCandidates() { return kCandidates; }

const char* IsaName(Isa isa) {
  for (const IsaCandidate& candidate : kCandidates) {
    if (candidate.isa == isa) return candidate.name;
  }
  CHECK(false, "instruction set {} is not in the list", static_cast<int>(isa));
  return nullptr;
}

Result<Isa> ChooseIsa() { return ChooseIsa(EnvironmentVariable("CONVENE_ISA"), kCandidates); }

Result<Isa> ChooseIsa(std::optional<std::string_view> forced_name,
                      std::span<const IsaCandidate> candidates) {
  CHECK(!candidates.empty());
  std::vector<std::string_view> names;
  for (const IsaCandidate& candidate : candidates) {
    names.push_back(candidate.name);
    if (forced_name && *forced_name != candidate.name) continue;
    const std::string missing = candidate.missing();
    if (missing.empty()) return candidate.isa;
    if (forced_name) {
      return Error{fmt::format("CONVENE_ISA={} cannot run here: {}", *forced_name, missing)};
    }
  }
  if (forced_name) {
    return Error{
        fmt::format("CONVENE_ISA={} is not known; use one of {}, or unset it to have the best",
                    *forced_name, fmt::join(names, ", "))};
  }
  return Error{fmt::format("none of {} can run here", fmt::join(names, ", "))};
}

Isa IsaOfProcess() {
  static const Isa isa = [] {
    const Result<Isa> chosen = ChooseIsa();
    return chosen ? *chosen : Isa::kReference;
  }();
  return isa;
}

std::vector<std::string> UnsupportedIsas() {
  std::vector<std::string> reasons;
  for (const IsaCandidate& candidate : kCandidates) {
    const std::string missing = candidate.missing();
    if (!missing.empty()) reasons.push_back(fmt::format("{}: {}", candidate.name, missing));
  }
  return reasons;
}

bool CpuIsAmd() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

int CpuFamily() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return 0;
  return FamilyOf(eax);
#else
  return 0;
#endif
}

}  // namespace convene::hardware
