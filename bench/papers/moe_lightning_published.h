// What MoE-Lightning (Cao et al., ASPLOS 2025) publishes: figures of its text, of its tables, and
// of its public code (github.com/caoshiyi/artifacts, branch asplos25), which has the values behind
// the pictures and the policies with which they were measured. Nothing here is computed.
#pragma once

#include <span>
#include <string>

namespace convene::papers {

// Constants of the public code, fastmoe/backend/utils.py; GB there are of 2^30 bytes.
struct PaperMachine {
  const char* name;
  double memory_gib;
  double memory_gibps;
  double tflops;
  double host_memory_gib;
  double host_gibps;
  double host_tflops;
  double link_gibps;
  // What FlexGen's own profiling fitted for copies to the device (benchmarks/flexgen/cost_models).
  double flexgen_link_gibps;
  // NVIDIA's data sheets: of its cores in float32, without tensor cores.
  double scalar_tflops;
};
extern const PaperMachine kT4;
extern const PaperMachine kL4;
extern const PaperMachine kT4Large;  // of S6 to S9, 416 GB

// Table 2: num_gpus share host and link.
struct PaperSetting {
  const char* name;
  const char* model;
  const PaperMachine* machine;
  int num_gpus;
};
const PaperSetting& SettingOf(const std::string& name);

enum class PaperSystem {
  kLightning,        // requests as long as they are
  kLightningPadded,  // all as long as the longest
  kFlexGen,
  kFlexGenHost,  // FlexGen(c)
  kDeepSpeed,
};
std::string NameOf(PaperSystem system);

struct PublishedRun {
  const char* where;  // figure or table, and workload
  const char* setting;
  PaperSystem system;
  int prompt_tokens;
  int gen_tokens;
  int batch;                // N: sequences of a step
  int micro_batch;          // 0: not published; the policy search chooses it
  double weights_resident;  // r_w; below 0: not published, as much as fits
  double tokens_per_second;
};
std::span<const PublishedRun> PublishedRuns();

// Fig. 9: seconds of one layer on S2's machine, by micro-batch and context.
struct PublishedLatency {
  int micro_batch;
  int context;
  double cache_load;  // of keys and values to the device
  double host_attention;
  double experts;  // on the device, whatever the context
};
std::span<const PublishedLatency> PublishedLatencies();

}  // namespace convene::papers
