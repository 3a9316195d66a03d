#include "bench/papers/findep_published.h"

namespace convene::papers {

const std::vector<RisingRow>& RisingRows() {
  static const std::vector<RisingRow> rows = {
      {'C', 2048, {202.67, 245.33, 284.00}, {202.67, 257.24, 282.04}},
      {'C', 4096, {230.12, 254.84, 270.35}, {230.12, 262.62, 269.92}},
      {'D', 2048, {558.23, 690.47, 756.35}, {558.23, 711.36, 760.48}},
      {'D', 4096, {632.41, 682.49, 707.57}, {632.41, 714.66, 735.46}},
  };
  return rows;
}

const std::vector<ComparedRow>& OfflineRows() {
  static const std::vector<ComparedRow> rows = {
      {"DeepSeek-V2", 1024, {48.50, 86.70, 62.31, 149.58}, {53.40, 93.04, 63.35, 161.50}},
      {"DeepSeek-V2", 2048, {46.28, 81.99, 56.63, 134.42}, {50.27, 86.63, 58.14, 150.82}},
      {"DeepSeek-V2", 4096, {44.21, 81.04, 49.80, 120.83}, {51.47, 85.84, 54.73, 132.07}},
      {"Qwen3-235B-A22B", 1024, {13.94, 31.52, 35.70, 94.97}, {15.81, 35.09, 36.86, 102.60}},
      {"Qwen3-235B-A22B", 2048, {14.00, 25.46, 32.78, 83.12}, {15.85, 27.39, 33.50, 90.15}},
      {"Qwen3-235B-A22B", 4096, {13.80, 22.48, 28.01, 61.59}, {15.55, 27.64, 30.06, 76.53}},
      {"Qwen3-235B-A22B", 8192, {8.57, 15.98, 20.14, 37.19}, {13.14, 25.71, 27.12, 45.26}},
  };
  return rows;
}

const std::vector<ComparedRow>& OnlineRows() {
  static const std::vector<ComparedRow> rows = {
      {"DeepSeek-V2", 3072, {28.23, 44.66, 30.24, 98.80}, {29.34, 50.13, 31.13, 121.07}},
      {"DeepSeek-V2", 6144, {41.88, 69.64, 36.67, 124.69}, {44.25, 75.99, 38.13, 142.36}},
      {"Qwen3-235B-A22B", 3072, {9.14, 16.24, 19.15, 40.94}, {10.95, 18.56, 19.16, 50.71}},
      {"Qwen3-235B-A22B", 6144, {13.54, 22.71, 30.19, 67.07}, {15.28, 30.43, 30.43, 78.69}},
  };
  return rows;
}

bool IsSlip(const ComparedRow& row, int testbed) {
  return row.model == "Qwen3-235B-A22B" && row.tokens == 6144 && testbed == 1;
}

const std::vector<ExposedRow>& ExposedRows() {
  static const std::vector<ExposedRow> rows = {
      {4096, 905.49, 528.94, 309.81}, {2048, 536.22, 144.32, 52.60}, {1024, 194.95, 188.65, 97.33}};
  return rows;
}

}  // namespace convene::papers
