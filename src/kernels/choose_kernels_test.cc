#include "kernels/choose_kernels.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "hardware/isa.h"

namespace convene::kernels {
namespace {

// Tests of kernels and models go over this list.
TEST(SupportedKernels, AreOnesOfTheirOwnForEveryInstructionSetThatRunsHere) {
  std::vector<std::string> expected;
  for (const hardware::IsaCandidate& candidate : hardware::IsaCandidates()) {
    if (candidate.missing().empty()) expected.push_back(candidate.name);
  }
  std::vector<std::string> names;
  std::set<decltype(KernelSet::gemm)> products;
  for (const KernelSet* set : SupportedKernels()) {
    names.push_back(set->name);
    products.insert(set->gemm);
  }
  EXPECT_EQ(names, expected);
  EXPECT_EQ(products.size(), expected.size());
}

}  // namespace
}  // namespace convene::kernels
