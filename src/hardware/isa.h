// The instruction sets convene has kernels for, best first, and the choice among them at run time.
// It is not the kernels: those are the folders of kernels/, one per row of this list.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace convene::hardware {

// Worst first: what one can run, those above it can run too.
enum class Isa {
  kReference,   // portable scalar code, the specification of all others
  kAvx2,        // AVX2 with FMA
  kAvx512,      // AVX-512 F/BW/DQ/VL
  kAvx512Vnni,  // the same with the VNNI dot products
  kAvx512Bf16,  // the same with the BF16 dot product, too
  kAmx,         // the same with AMX: tiles of bf16 and of bytes
};

struct IsaCandidate {
  Isa isa;
  const char* name;          // as in CONVENE_ISA and in reports
  std::string (*missing)();  // what this machine lacks for it; empty if it can run it
};

// All instruction sets, best first. The last one, the reference, runs everywhere.
std::span<const IsaCandidate> IsaCandidates();

const char* IsaName(Isa isa);

// The first candidate this machine can run, or the one that the variable CONVENE_ISA names.
// Errors: an unknown name (lists the known ones), a named one that cannot run here (says why).
Result<Isa> ChooseIsa();

// As above with the name and the list given; `candidates` must not be empty. For tests and --help.
Result<Isa> ChooseIsa(std::optional<std::string_view> forced_name,
                      std::span<const IsaCandidate> candidates);

// ChooseIsa as it was when this was first called, or the reference where it fails. Thread-safe.
Isa IsaOfProcess();

// The version of a function that the choice of ChooseIsa allows, for functions that are compiled
// for several instruction sets and give the same bits on all of them. The choice is made once per
// process; where it fails it is `portable`, and whoever chooses kernels reports the error.
template <typename Function>
Function VersionForIsa(Function portable, Function avx2, Function avx512) {
  const Isa isa = IsaOfProcess();
  return isa >= Isa::kAvx512 ? avx512 : isa >= Isa::kAvx2 ? avx2 : portable;
}

// Whether AMD made this CPU: its caches and prefetchers want to be asked otherwise than Intel's.
bool CpuIsAmd();

// AMD's families, as CPUID tells them.
inline constexpr int kFamilyOfZen5 = 0x1a;

// The CPU's family as CPUID tells it; 0: not known.
int CpuFamily();

// One line for each candidate that this machine cannot run: "avx512_bf16: <reason>".
std::vector<std::string> UnsupportedIsas();

}  // namespace convene::hardware
