// What FinDEP (Pan et al., 2025) publishes in its tables 3 to 7, as its text has them.
#pragma once

#include <string>
#include <vector>

namespace convene::papers {

// Thousands of tokens per second with m_a (Table 3) or r1 (Table 4) of 1, 2 and 4, the other one
// being 1.
struct RisingRow {
  char testbed = 'C';
  int length = 0;
  double of_sequences[3] = {};      // Table 3
  double of_micro_batches[3] = {};  // Table 4
};
const std::vector<RisingRow>& RisingRows();

// Thousands of tokens per second, by testbed A to D (Tables 5 and 6).
struct ComparedRow {
  std::string model;
  int tokens = 0;  // length of sequences (Table 5), tokens that arrive (Table 6)
  double ping_pong[4] = {};
  double fine[4] = {};
};
const std::vector<ComparedRow>& OfflineRows();  // Table 5
const std::vector<ComparedRow>& OnlineRows();   // Table 6
// 30.43 stands beside "(1.09)" and equals testbed C's cell: a slip, which is no target.
bool IsSlip(const ComparedRow& row, int testbed);

// Milliseconds of communication that is not overlapped (Table 7).
struct ExposedRow {
  int length = 0;
  double naive = 0;
  double ping_pong = 0;
  double fine = 0;
};
const std::vector<ExposedRow>& ExposedRows();

}  // namespace convene::papers
