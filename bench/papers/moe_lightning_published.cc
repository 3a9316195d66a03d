#include "bench/papers/moe_lightning_published.h"

#include "base/check.h"

namespace convene::papers {

const PaperMachine kT4 = {"1 x T4", 15, 300, 65, 192, 100, 0.8, 16, 5.4299, 8.1};
// Bandwidth of the host: the code's README names 76 for S2.
const PaperMachine kL4 = {"1 x L4", 24, 285, 104, 192, 76, 1.6, 16, 5.4443, 30.3};
const PaperMachine kT4Large = {"T4s", 15, 300, 65, 416, 100, 0.8, 16, 4.7789, 8.1};

namespace {

constexpr PaperSetting kSettings[] = {
    {"S1", "Mixtral-8x7B", &kT4, 1},       {"S2", "Mixtral-8x7B", &kL4, 1},
    {"S6", "Mixtral-8x22B", &kT4Large, 2}, {"S7", "Mixtral-8x22B", &kT4Large, 4},
    {"S8", "DBRX", &kT4Large, 2},          {"S9", "DBRX", &kT4Large, 4},
};

// Throughputs: plots/main_results/plot_e2e_bar_all.py and the text. Policies: of Fig. 7 without
// padding README.md; padded, as many requests as the files of results say were answered, in the
// micro-batches that divide them (Table 5 names S1's); of Fig. 8 the requests alone. FlexGen's:
// benchmarks/flexgen; with several GPUs those of one stage: its batch is one of as many that are
// under way as there are stages, and the host must hold all (S7's scripts name four times as many
// as would fit). DeepSpeed's: Table 4; of MTBench as many tokens of prompts as there (102 * 256 on
// the T4, 156 * 256 on the L4), of S6 and S7 32 (section 5.3). Table 4: its own.
constexpr PublishedRun kRuns[] = {
    {"Fig. 7", "S1", PaperSystem::kLightning, 77, 32, 3116, 164, -1, 63.0},
    {"Fig. 7", "S1", PaperSystem::kLightning, 77, 64, 3116, 164, -1, 101.3},
    {"Fig. 7", "S1", PaperSystem::kLightning, 77, 128, 2296, 164, -1, 97.7},
    {"Fig. 7", "S1", PaperSystem::kLightning, 77, 256, 1500, 100, -1, 96.7},
    {"Fig. 7", "S1", PaperSystem::kLightningPadded, 418, 32, 504, 36, -1, 15.6},
    {"Fig. 7", "S1", PaperSystem::kLightningPadded, 418, 64, 504, 36, -1, 24},
    {"Fig. 7", "S1", PaperSystem::kLightningPadded, 418, 128, 504, 36, -1, 30.1},
    {"Fig. 7", "S1", PaperSystem::kLightningPadded, 418, 256, 504, 36, -1, 33.9},
    {"Fig. 7", "S1", PaperSystem::kFlexGen, 418, 32, 1280, 32, 0.07, 12.1},
    {"Fig. 7", "S1", PaperSystem::kFlexGenHost, 418, 32, 1280, 32, 0.07, 9.8},
    {"Fig. 7", "S1", PaperSystem::kFlexGen, 418, 64, 1248, 16, 0.08, 12.3},
    {"Fig. 7", "S1", PaperSystem::kFlexGenHost, 418, 64, 1248, 16, 0.08, 9.4},
    {"Fig. 7", "S1", PaperSystem::kFlexGen, 418, 128, 1112, 8, 0.08, 9.5},
    {"Fig. 7", "S1", PaperSystem::kFlexGenHost, 418, 128, 1112, 8, 0.08, 7.2},
    {"Fig. 7", "S1", PaperSystem::kFlexGen, 418, 256, 904, 8, 0.08, 9.6},
    {"Fig. 7", "S1", PaperSystem::kFlexGenHost, 418, 256, 904, 8, 0.08, 6.8},
    {"Fig. 7", "S1", PaperSystem::kDeepSpeed, 418, 32, 62, 62, 0, 7.1},
    {"Fig. 7", "S1", PaperSystem::kDeepSpeed, 418, 64, 62, 62, 0, 7.6},
    {"Fig. 7", "S1", PaperSystem::kDeepSpeed, 418, 128, 62, 62, 0, 7.8},
    {"Fig. 7", "S1", PaperSystem::kDeepSpeed, 418, 256, 62, 62, 0, 6.7},
    {"Fig. 7", "S2", PaperSystem::kLightning, 77, 32, 4536, 324, -1, 203},
    {"Fig. 7", "S2", PaperSystem::kLightning, 77, 64, 3648, 228, -1, 294.5},
    {"Fig. 7", "S2", PaperSystem::kLightning, 77, 128, 2624, 164, -1, 217.5},
    {"Fig. 7", "S2", PaperSystem::kLightning, 77, 256, 1584, 132, -1, 167.9},
    {"Fig. 7", "S2", PaperSystem::kLightningPadded, 418, 32, 1088, 68, -1, 53.7},
    {"Fig. 7", "S2", PaperSystem::kLightningPadded, 418, 64, 1020, 68, -1, 67.4},
    {"Fig. 7", "S2", PaperSystem::kLightningPadded, 418, 128, 884, 68, -1, 79},
    {"Fig. 7", "S2", PaperSystem::kLightningPadded, 418, 256, 748, 68, -1, 78.6},
    {"Fig. 7", "S2", PaperSystem::kFlexGen, 418, 32, 1344, 64, 0.12, 29.2},
    {"Fig. 7", "S2", PaperSystem::kFlexGenHost, 418, 32, 1344, 64, 0.12, 17.5},
    {"Fig. 7", "S2", PaperSystem::kFlexGen, 418, 64, 1280, 64, 0.12, 34.9},
    {"Fig. 7", "S2", PaperSystem::kFlexGenHost, 418, 64, 1280, 64, 0.12, 18.9},
    {"Fig. 7", "S2", PaperSystem::kFlexGen, 418, 128, 1152, 64, 0.12, 37.2},
    {"Fig. 7", "S2", PaperSystem::kFlexGenHost, 418, 128, 1152, 64, 0.12, 20.0},
    {"Fig. 7", "S2", PaperSystem::kFlexGen, 418, 256, 960, 32, 0.14, 28.8},
    {"Fig. 7", "S2", PaperSystem::kFlexGenHost, 418, 256, 960, 32, 0.14, 15.9},
    {"Fig. 7", "S2", PaperSystem::kDeepSpeed, 418, 32, 95, 95, 0, 12.7},
    {"Fig. 7", "S2", PaperSystem::kDeepSpeed, 418, 64, 95, 95, 0, 13.3},
    {"Fig. 7", "S2", PaperSystem::kDeepSpeed, 418, 128, 95, 95, 0, 12.1},
    {"Fig. 7", "S2", PaperSystem::kDeepSpeed, 418, 256, 95, 95, 0, 11.8},
    {"Fig. 7", "S6", PaperSystem::kLightningPadded, 417, 32, 252, 0, -1, 5.38},
    {"Fig. 7", "S6", PaperSystem::kLightningPadded, 417, 64, 252, 0, -1, 7.33},
    {"Fig. 7", "S6", PaperSystem::kLightningPadded, 417, 128, 252, 0, -1, 7.75},
    {"Fig. 7", "S6", PaperSystem::kLightningPadded, 417, 256, 252, 0, -1, 9.13},
    {"Fig. 7", "S6", PaperSystem::kFlexGen, 417, 32, 368, 8, 0.01, 4.25},
    {"Fig. 7", "S6", PaperSystem::kFlexGenHost, 417, 32, 368, 8, 0.01, 2.7},
    {"Fig. 7", "S6", PaperSystem::kFlexGen, 417, 64, 364, 2, 0.01, 4.4},
    {"Fig. 7", "S6", PaperSystem::kFlexGenHost, 417, 64, 364, 2, 0.01, 2.86},
    {"Fig. 7", "S6", PaperSystem::kFlexGen, 417, 128, 320, 4, 0.01, 4.77},
    {"Fig. 7", "S6", PaperSystem::kFlexGenHost, 417, 128, 320, 4, 0.01, 3.44},
    {"Fig. 7", "S6", PaperSystem::kFlexGen, 417, 256, 261, 1, 0.01, 3.66},
    {"Fig. 7", "S6", PaperSystem::kFlexGenHost, 417, 256, 261, 1, 0.01, 3.09},
    {"Fig. 7", "S6", PaperSystem::kDeepSpeed, 417, 32, 32, 32, 0, 0.56},
    {"Fig. 7", "S6", PaperSystem::kDeepSpeed, 417, 64, 32, 32, 0, 0.59},
    {"Fig. 7", "S6", PaperSystem::kDeepSpeed, 417, 128, 32, 32, 0, 0.61},
    {"Fig. 7", "S6", PaperSystem::kDeepSpeed, 417, 256, 32, 32, 0, 0.62},
    {"Fig. 7", "S7", PaperSystem::kLightningPadded, 417, 32, 648, 36, -1, 14.9},
    {"Fig. 7", "S7", PaperSystem::kLightningPadded, 417, 64, 612, 36, -1, 22.4},
    {"Fig. 7", "S7", PaperSystem::kLightningPadded, 417, 128, 540, 36, -1, 26.2},
    {"Fig. 7", "S7", PaperSystem::kLightningPadded, 417, 256, 468, 36, -1, 25.8},
    {"Fig. 7", "S7", PaperSystem::kFlexGen, 417, 32, 184, 4, 0.01, 4.97},
    {"Fig. 7", "S7", PaperSystem::kFlexGenHost, 417, 32, 184, 4, 0.01, 1.78},
    {"Fig. 7", "S7", PaperSystem::kFlexGen, 417, 64, 182, 1, 0.01, 5.31},
    {"Fig. 7", "S7", PaperSystem::kFlexGenHost, 417, 64, 182, 1, 0.01, 0.97},
    {"Fig. 7", "S7", PaperSystem::kFlexGen, 417, 128, 160, 2, 0.01, 4.36},
    {"Fig. 7", "S7", PaperSystem::kFlexGenHost, 417, 128, 160, 2, 0.01, 1.02},
    {"Fig. 7", "S7", PaperSystem::kFlexGen, 417, 256, 130, 1, 0.01, 2.96},
    {"Fig. 7", "S7", PaperSystem::kFlexGenHost, 417, 256, 130, 1, 0.01, 0.67},
    {"Fig. 7", "S7", PaperSystem::kDeepSpeed, 417, 32, 32, 32, 0, 0.9},
    {"Fig. 7", "S7", PaperSystem::kDeepSpeed, 417, 64, 32, 32, 0, 1.0},
    {"Fig. 7", "S7", PaperSystem::kDeepSpeed, 417, 128, 32, 32, 0, 1.2},
    {"Fig. 7", "S7", PaperSystem::kDeepSpeed, 417, 256, 32, 32, 0, 1.3},
    {"Fig. 8", "S8", PaperSystem::kLightning, 77, 32, 2652, 0, -1, 34.0},
    {"Fig. 8", "S8", PaperSystem::kLightning, 77, 64, 2652, 0, -1, 36.2},
    {"Fig. 8", "S8", PaperSystem::kLightning, 77, 128, 2244, 0, -1, 29.7},
    {"Fig. 8", "S8", PaperSystem::kLightning, 77, 256, 1344, 0, -1, 25.9},
    {"Fig. 8", "S9", PaperSystem::kLightning, 77, 32, 4352, 0, -1, 71.5},
    {"Fig. 8", "S9", PaperSystem::kLightning, 77, 64, 3604, 0, -1, 83.6},
    {"Fig. 8", "S9", PaperSystem::kLightning, 77, 128, 2440, 0, -1, 83.0},
    {"Fig. 8", "S9", PaperSystem::kLightning, 77, 256, 1836, 0, -1, 59.5},
    {"Table 4, synthetic reasoning", "S1", PaperSystem::kFlexGenHost, 256, 50, 1952, 32, 0.07,
     16.903},
    {"Table 4, synthetic reasoning", "S1", PaperSystem::kFlexGen, 256, 50, 1952, 32, 0.07, 22.691},
    {"Table 4, synthetic reasoning", "S1", PaperSystem::kDeepSpeed, 256, 50, 102, 102, 0, 11.832},
    {"Table 4, synthetic reasoning", "S1", PaperSystem::kLightningPadded, 256, 50, 936, 36, -1,
     26.349},
    {"Table 4, synthetic reasoning", "S2", PaperSystem::kFlexGenHost, 256, 50, 2112, 64, 0.14,
     20.015},
    {"Table 4, synthetic reasoning", "S2", PaperSystem::kFlexGen, 256, 50, 2112, 64, 0.14, 50.138},
    {"Table 4, synthetic reasoning", "S2", PaperSystem::kDeepSpeed, 256, 50, 156, 156, 0, 18.589},
    {"Table 4, synthetic reasoning", "S2", PaperSystem::kLightningPadded, 256, 50, 1500, 100, -1,
     105.29},
    {"Table 4, summarization", "S1", PaperSystem::kFlexGenHost, 1984, 64, 276, 3, 0.07, 2.614},
    {"Table 4, summarization", "S1", PaperSystem::kFlexGen, 1984, 64, 276, 3, 0.07, 3.868},
    {"Table 4, summarization", "S1", PaperSystem::kDeepSpeed, 1984, 64, 8, 8, 0, 0.965},
    {"Table 4, summarization", "S1", PaperSystem::kLightningPadded, 1984, 64, 76, 4, -1, 4.52},
    {"Table 4, summarization", "S2", PaperSystem::kFlexGenHost, 1984, 64, 288, 8, 0.12, 4.307},
    {"Table 4, summarization", "S2", PaperSystem::kFlexGen, 1984, 64, 288, 8, 0.12, 7.14},
    {"Table 4, summarization", "S2", PaperSystem::kDeepSpeed, 1984, 64, 12, 12, 0, 1.447},
    {"Table 4, summarization", "S2", PaperSystem::kLightningPadded, 1984, 64, 288, 8, -1, 12.393},
    {"Table 5, our policy", "S1", PaperSystem::kFlexGen, 418, 128, 504, 36, -1, 16.816},
    {"Table 5, larger N", "S1", PaperSystem::kFlexGen, 418, 128, 1116, 36, -1, 20.654},
};

// plots/ablation/ablation_2.py.
constexpr PublishedLatency kLatencies[] = {
    {32, 128, 0.00141, 0.00044, 0.0122},  {32, 256, 0.00274, 0.00067, 0.0122},
    {32, 512, 0.00546, 0.00173, 0.0122},  {32, 1024, 0.0109, 0.003, 0.0122},
    {32, 2048, 0.0218, 0.00594, 0.0122},  {64, 128, 0.00274, 0.00074, 0.0123},
    {64, 256, 0.00546, 0.00148, 0.0123},  {64, 512, 0.0109, 0.00298, 0.0123},
    {64, 1024, 0.02176, 0.00589, 0.0123}, {64, 2048, 0.04351, 0.0116, 0.0123},
    {128, 128, 0.00546, 0.00157, 0.0125}, {128, 256, 0.01092, 0.00298, 0.0125},
    {128, 512, 0.02178, 0.00632, 0.0125}, {128, 1024, 0.0435, 0.0114, 0.0125},
    {128, 2048, 0.08699, 0.0232, 0.0125}, {256, 128, 0.01089, 0.00371, 0.013},
    {256, 256, 0.02177, 0.00673, 0.013},  {256, 512, 0.04349, 0.01178, 0.013},
    {256, 1024, 0.08697, 0.02206, 0.013}, {256, 2048, 0.17388, 0.04458, 0.013},
};

}  // namespace

const PaperSetting& SettingOf(const std::string& name) {
  for (const PaperSetting& setting : kSettings) {
    if (name == setting.name) return setting;
  }
  CHECK(false, "no setting {}", name);
  return kSettings[0];
}

std::string NameOf(PaperSystem system) {
  switch (system) {
    case PaperSystem::kLightning:
      return "MoE-Lightning";
    case PaperSystem::kLightningPadded:
      return "MoE-Lightning(p)";
    case PaperSystem::kFlexGen:
      return "FlexGen";
    case PaperSystem::kFlexGenHost:
      return "FlexGen(c)";
    case PaperSystem::kDeepSpeed:
      return "DeepSpeed";
  }
  return "";
}

std::span<const PublishedRun> PublishedRuns() { return kRuns; }

std::span<const PublishedLatency> PublishedLatencies() { return kLatencies; }

}  // namespace convene::papers
