// Reproduces figures and tables of MoE-Lightning in simulation, beside what the paper publishes.
// Constants are those of its public code; nothing is fitted to the throughputs that are scored.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/papers/moe_lightning_published.h"
#include "bench/papers/offload_schedules.h"
#include "bench/papers/paper_models.h"
#include "planner/offload_policy.h"

namespace convene::papers {
namespace {

constexpr double kGib = double{1 << 30};
// What the public code's optimizer leaves of each memory to its policies.
constexpr double kDeviceShare = 0.86;
constexpr double kHostShare = 0.8;

// How often FlexGen's attention on the host passes over keys and values in its memory. Its
// pytorch_backend.py (mha_gen) multiplies for each head of queries, so they are repeated for the
// heads that share them while they are laid out anew (2 bytes read, 2 written for each repetition),
// widened to float32 (2 and 4) and multiplied (4); for the 2 bytes that lie there.
double FlexGenPasses(const model::ModelSpec& spec) {
  const model::AttentionSpec& attention = spec.layers.front().attention;
  const double repetitions = double(attention.num_heads) / attention.num_kv_heads;
  return (2 + (2 + 2 + 4 + 4) * repetitions) / 2;
}

// Which constants are taken.
enum class Constants {
  kPeaks,     // of the public code, of all systems alike
  kProfiled,  // what its authors measured besides: Fig. 9's rates, and FlexGen's own rate of copies
  // The same, and all systems compute prompts at the GPU's rate without tensor cores. Nobody
  // published that they do: it is what the published times of prompts agree with.
  kScalarPrompts,
};

// From Fig. 9 on S2's machine, at micro-batch 64 and context 512, as shares of its constants: keys
// and values to the device, attention on the host, experts on the device.
struct Shares {
  double link = 1;
  double host_memory = 1;
  double device_memory = 1;
};
Shares MeasuredShares() {
  const model::ModelSpec spec = Model("Mixtral-8x7B");
  const double cache = 64.0 * 512 * 2 * 2 * spec.layers[0].attention.kv_dim();
  const double weights = 8.0 * 3 * 2 * spec.hidden_size * spec.layers[0].moe->intermediate_size;
  for (const PublishedLatency& point : PublishedLatencies()) {
    if (point.micro_batch != 64 || point.context != 512) continue;
    return {.link = cache / point.cache_load / (kL4.link_gibps * kGib),
            .host_memory = cache / point.host_attention / (kL4.host_gibps * kGib),
            .device_memory = weights / point.experts / (kL4.memory_gibps * kGib)};
  }
  return {};
}

// Tensor parallelism multiplies what a device has, and shares host and link (section 4.3; the
// public code does the same).
OffloadRates RatesOf(const PaperMachine& machine, double num_gpus, double share_of_host,
                     Constants constants) {
  OffloadRates rates = {.device_flops = machine.tflops * 1e12 * num_gpus,
                        .device_memory = machine.memory_gibps * kGib * num_gpus,
                        .host_flops = machine.host_tflops * 1e12 * share_of_host,
                        .host_memory = machine.host_gibps * kGib * share_of_host,
                        .link = machine.link_gibps * kGib * share_of_host};
  if (constants == Constants::kPeaks) return rates;
  const Shares shares = MeasuredShares();
  rates.device_memory *= shares.device_memory;
  rates.host_memory *= shares.host_memory;
  rates.link *= shares.link;
  // What one process copies from memory that is not pinned; several share the link.
  rates.pageable_link = std::min(machine.flexgen_link_gibps * kGib, rates.link);
  return rates;
}

planner::OffloadQuestion Ask(const model::ModelSpec& spec, const PaperMachine& machine,
                             int num_gpus, int prompt_tokens, int gen_tokens, int most_batch) {
  planner::OffloadQuestion question;
  question.model = planner::OffloadModelOf(spec);
  question.fast = {.name = machine.name,
                   .flops = machine.tflops * 1e12 * num_gpus,
                   .bytes_per_second = machine.memory_gibps * kGib * num_gpus,
                   .bytes = machine.memory_gib * kGib * num_gpus * kDeviceShare};
  question.slow = {.name = "host",
                   .flops = machine.host_tflops * 1e12,
                   .bytes_per_second = machine.host_gibps * kGib,
                   .bytes = machine.host_memory_gib * kGib * kHostShare,
                   .up_bytes_per_second = machine.link_gibps * kGib};
  question.down_bytes_per_second = question.slow.up_bytes_per_second;
  question.prompt_tokens = prompt_tokens;
  question.gen_tokens = gen_tokens;
  question.most_batch = most_batch;
  return question;
}

// What a run leaves open is the policy search's: the micro-batch for as many sequences as were
// published, and the weights that stay.
planner::OffloadPolicy PolicyOf(const PublishedRun& run, const PaperSetting& setting,
                                const model::ModelSpec& spec) {
  planner::OffloadPolicy policy = {.batch = run.batch,
                                   .micro_batch = run.micro_batch,
                                   .attention_on_host = true,
                                   .weights_resident = run.weights_resident};
  if (run.weights_resident >= 0 && run.micro_batch > 0) return policy;
  planner::OffloadQuestion question =
      Ask(spec, *setting.machine, setting.num_gpus, run.prompt_tokens, run.gen_tokens, run.batch);
  // The published batch was held by the paper's machine; here only its micro-batches are asked for.
  question.slow.bytes = 0;
  if (run.micro_batch > 0) question.micro_batches = {run.micro_batch};
  const auto answer = planner::SearchOffloadPolicy(question);
  if (!answer.ok()) {
    policy.weights_resident = 0;
    policy.micro_batch = std::max(1, policy.micro_batch);
    return policy;
  }
  for (const planner::OffloadAnswer::Way& way : answer->ways) {
    if (!way.policy.attention_on_host || way.policy.experts_on_host || !way.figures.fits) continue;
    policy.weights_resident = way.policy.weights_resident;
    policy.micro_batch = way.policy.micro_batch;
    policy.batch = way.policy.batch;
  }
  return policy;
}

OffloadOrder OrderOf(PaperSystem system) {
  switch (system) {
    case PaperSystem::kLightning:
    case PaperSystem::kLightningPadded:
      return OffloadOrder::kCgo;
    case PaperSystem::kFlexGen:
      return OffloadOrder::kS4;
    case PaperSystem::kFlexGenHost:
      return OffloadOrder::kS3;
    case PaperSystem::kDeepSpeed:
      return OffloadOrder::kLayerwise;
  }
  return OffloadOrder::kCgo;
}

struct Simulated {
  planner::OffloadPolicy policy;
  double prefill = 0;  // seconds
  double step = 0;     // of decode
  double tokens_per_second = 0;
};

Simulated SimulateRun(const PublishedRun& run, OffloadOrder order, Constants constants) {
  const PaperSetting& setting = SettingOf(run.setting);
  const model::ModelSpec whole = Model(setting.model);
  Simulated simulated{.policy = PolicyOf(run, setting, whole)};
  const bool is_flexgen =
      run.system == PaperSystem::kFlexGen || run.system == PaperSystem::kFlexGenHost;
  // FlexGen's pipeline: each GPU has a part of the layers, all are under way at once and share host
  // and link. A batch leaves the pipeline whenever the slowest stage is through with one.
  model::ModelSpec spec = whole;
  int num_gpus = setting.num_gpus;
  double share_of_host = 1;
  if (is_flexgen && num_gpus > 1) {
    share_of_host = 1.0 / num_gpus;
    spec.layers.resize(whole.layers.size() / num_gpus);
    num_gpus = 1;
  }
  OffloadRates rates = RatesOf(*setting.machine, num_gpus, share_of_host, constants);
  OffloadPass pass = {
      .order = order,
      .micro_batches = simulated.policy.num_micro_batches(),
      .micro_batch = double(simulated.policy.micro_batch),
      .context = run.prompt_tokens + run.gen_tokens / 2.0,
      .weights_resident = simulated.policy.weights_resident,
      .is_pageable = is_flexgen && constants != Constants::kPeaks,
      .cache_passes = order == OffloadOrder::kS3 && is_flexgen ? FlexGenPasses(whole) : 1};
  simulated.step = SecondsOfPass(spec, pass, rates);
  pass.is_prompt = true;
  pass.context = run.prompt_tokens;
  if (constants == Constants::kScalarPrompts) {
    rates.device_flops = setting.machine->scalar_tflops * 1e12 * num_gpus;
  }
  simulated.prefill = SecondsOfPass(spec, pass, rates);
  simulated.tokens_per_second = simulated.policy.batch * run.gen_tokens /
                                (simulated.prefill + (run.gen_tokens - 1) * simulated.step);
  return simulated;
}

// --- Scores.

struct Score {
  std::vector<double> predicted;
  std::vector<double> published;
  std::vector<double> gain_errors;
  void Add(double of_prediction, double of_paper) {
    predicted.push_back(of_prediction);
    published.push_back(of_paper);
    gain_errors.push_back(ErrorOfGain(of_prediction, of_paper));
  }
};

std::string KeyOf(const PublishedRun& run, PaperSystem system) {
  const std::string where = std::string(run.where).substr(0, 7) == "Table 5" ? "Fig. 7" : run.where;
  return fmt::format("{}|{}|{}|{}", where, run.setting, run.gen_tokens, NameOf(system));
}

struct Both {
  double predicted = 0;
  double published = 0;
};

void PrintGain(const std::string& where, const std::string& what, const Both& over,
               const Both& under, Score& score) {
  const double predicted = over.predicted / under.predicted;
  const double published = over.published / under.published;
  score.Add(predicted, published);
  fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.0f} % |\n", where, what, published, predicted,
             100 * score.gain_errors.back());
}

void PrintGains(const std::map<std::string, Both>& runs) {
  fmt::print("\n| where | speed-up | published | predicted | error of the gain |\n");
  fmt::print("|---|---|---:|---:|---:|\n");
  Score score;
  for (const PublishedRun& run : PublishedRuns()) {
    const Both& of_run = runs.at(KeyOf(run, run.system));
    const std::string where = fmt::format("{}, {}, {}", run.where, run.setting, run.gen_tokens);
    const bool is_table5 = std::string(run.where).starts_with("Table 5");
    if (is_table5) continue;
    const auto lightning = runs.find(KeyOf(run, PaperSystem::kLightningPadded));
    const bool is_baseline =
        run.system != PaperSystem::kLightning && run.system != PaperSystem::kLightningPadded;
    if (is_baseline) {
      PrintGain(where, "MoE-Lightning(p) / " + NameOf(run.system), lightning->second, of_run,
                score);
    } else if (run.system == PaperSystem::kLightning && lightning != runs.end()) {
      PrintGain(where, "MoE-Lightning / MoE-Lightning(p)", of_run, lightning->second, score);
    }
    const std::string setting = run.setting;
    const bool is_larger = !is_baseline && (setting == "S7" || setting == "S9");
    if (!is_larger) continue;
    std::string smaller = KeyOf(run, run.system);
    smaller.replace(smaller.find(setting), 2, setting == "S7" ? "S6" : "S8");
    PrintGain(where, NameOf(run.system) + ", 4 GPUs / 2", of_run, runs.at(smaller), score);
  }
  fmt::print("\nMedian error of the gain: {:.0f} %; rank correlation: {:.2f}; {} speed-ups\n",
             100 * Median(score.gain_errors), RankCorrelation(score.predicted, score.published),
             score.published.size());
}

// Table 5: four schedules of one policy, and the published ones.
void PrintTable5(Constants constants) {
  fmt::print("\n| Table 5, S1, 128 generated, N 504, micro-batch 36 | tokens/s | over S4 |\n");
  fmt::print("|---|---:|---:|\n");
  const PublishedRun run = {"Table 5", "S1", PaperSystem::kLightningPadded, 418, 128, 504, 36,
                            -1,        30.12};
  struct Row {
    const char* name;
    OffloadOrder order;
  };
  constexpr Row kRows[] = {{"CGOPipe (published 30.12, 1.79)", OffloadOrder::kCgo},
                           {"S2", OffloadOrder::kS2},
                           {"S3", OffloadOrder::kS3},
                           {"S4 (published 16.816)", OffloadOrder::kS4},
                           {"layer by layer", OffloadOrder::kLayerwise}};
  const double s4 = SimulateRun(run, OffloadOrder::kS4, constants).tokens_per_second;
  for (const Row& row : kRows) {
    const double rate = SimulateRun(run, row.order, constants).tokens_per_second;
    fmt::print("| {} | {:.2f} | {:.2f} |\n", row.name, rate, rate / s4);
  }
}

void PrintRuns(Constants constants) {
  fmt::print(
      "\n| where | setting | system | in | out | N | micro-batch | resident | prefill s | "
      "step s | published tokens/s | predicted | factor |\n");
  fmt::print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  std::map<std::string, Both> runs;
  std::vector<double> factors;
  std::vector<double> predicted;
  std::vector<double> published;
  int within_two = 0;
  for (const PublishedRun& run : PublishedRuns()) {
    const Simulated simulated = SimulateRun(run, OrderOf(run.system), constants);
    const double factor = simulated.tokens_per_second / run.tokens_per_second;
    factors.push_back(factor);
    predicted.push_back(simulated.tokens_per_second);
    published.push_back(run.tokens_per_second);
    within_two += factor <= 2 && factor >= 0.5;
    if (!std::string(run.where).starts_with("Table 5")) {
      runs[KeyOf(run, run.system)] = {simulated.tokens_per_second, run.tokens_per_second};
    } else {
      runs.emplace(KeyOf(run, run.system),
                   Both{simulated.tokens_per_second, run.tokens_per_second});
    }
    fmt::print(
        "| {} | {} | {} | {} | {} | {} | {} | {:.2f} | {:.1f} | {:.2f} | {} | {:.2f} | "
        "{:.2f} |\n",
        run.where, run.setting, NameOf(run.system), run.prompt_tokens, run.gen_tokens,
        simulated.policy.batch, simulated.policy.micro_batch, simulated.policy.weights_resident,
        simulated.prefill, simulated.step, run.tokens_per_second, simulated.tokens_per_second,
        factor);
  }
  fmt::print(
      "\nWithin a factor of 2: {} of {} throughputs; median factor {:.2f}; rank correlation "
      "{:.2f}\n",
      within_two, published.size(), Median(factors), RankCorrelation(predicted, published));
  PrintGains(runs);
  PrintTable5(constants);
}

// --- Figures.

// Fig. 1: how much memory of the host each schedule needs for a throughput, S1, 128 generated.
void PrintFigure1() {
  fmt::print("\n| Fig. 1: host memory, GiB | CGOPipe, tokens/s | N | S4, tokens/s | N |\n");
  fmt::print("|---:|---:|---:|---:|---:|\n");
  const model::ModelSpec spec = Model("Mixtral-8x7B");
  struct Point {
    double gib = 0;
    double rate = 0;
  };
  std::vector<Point> cgo;
  std::vector<Point> s4;
  for (int gib = 96; gib <= 384; gib += 16) {
    PaperMachine machine = kT4;
    machine.host_memory_gib = gib / kHostShare;
    planner::OffloadQuestion question = Ask(spec, machine, 1, 77, 128, 1 << 14);
    question.micro_batches = {36};
    const auto answer = planner::SearchOffloadPolicy(question);
    if (!answer.ok()) continue;
    const auto rate = [&](OffloadOrder order) {
      for (const auto& way : answer->ways) {
        if (!way.policy.attention_on_host || way.policy.experts_on_host) continue;
        const OffloadPass pass = {.order = order,
                                  .micro_batches = way.policy.num_micro_batches(),
                                  .micro_batch = double(way.policy.micro_batch),
                                  .context = 77 + 64,
                                  .weights_resident = way.policy.weights_resident};
        const double step = SecondsOfPass(spec, pass, RatesOf(machine, 1, 1, Constants::kPeaks));
        return std::pair{way.policy.batch, way.policy.batch / step};
      }
      return std::pair{0, 0.0};
    };
    const auto [batch, cgo_rate] = rate(OffloadOrder::kCgo);
    const auto [s4_batch, s4_rate] = rate(OffloadOrder::kS4);
    cgo.push_back({double(gib), cgo_rate});
    s4.push_back({double(gib), s4_rate});
    fmt::print("| {} | {:.1f} | {} | {:.1f} | {} |\n", gib, cgo_rate, batch, s4_rate, s4_batch);
  }
  // Without the weights, which every schedule keeps there: the memory that sequences take.
  const double weights = planner::OffloadModelOf(spec).StreamedElements() * 2 / kGib;
  for (const Point& point : s4) {
    const auto reached = std::find_if(cgo.begin(), cgo.end(),
                                      [&](const Point& other) { return other.rate >= point.rate; });
    if (reached == cgo.end() || point.gib != s4.back().gib) continue;
    fmt::print(
        "\nWhat S4 reaches with {:.0f} GiB, CGOPipe reaches with {:.0f}: {:.1f} times less "
        "in all, {:.1f} times less besides weights (published: 2 to 3 times less)\n",
        point.gib, reached->gib, point.gib / reached->gib,
        (point.gib - weights) / std::max(1.0, reached->gib - weights));
  }
}

// Fig. 9: seconds of one layer by the constants, each at the lower of its roofs.
void PrintFigure9() {
  fmt::print(
      "\n| Fig. 9: micro-batch | context | cache up, ms: published | predicted | host "
      "attention, ms: published | predicted | experts, ms: published | predicted |\n");
  fmt::print("|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  const model::ModelSpec spec = Model("Mixtral-8x7B");
  const planner::OffloadModel model = planner::OffloadModelOf(spec);
  const OffloadRates rates = RatesOf(kL4, 1, 1, Constants::kPeaks);
  const double layers = model.num_layers;
  std::vector<double> errors[3];
  for (const PublishedLatency& point : PublishedLatencies()) {
    const double cache = point.micro_batch * model.CachedElements(point.context) * 2 / layers;
    const double load = cache / rates.link;
    const double attention =
        std::max(cache / rates.host_memory,
                 point.micro_batch * model.ScoreFlops(point.context) / layers / rates.host_flops);
    const double experts =
        std::max(model.VisitedElements(point.micro_batch) * 2 / layers / rates.device_memory,
                 model.StreamedFlops(point.micro_batch) / layers / rates.device_flops);
    const double pairs[3][2] = {
        {load, point.cache_load}, {attention, point.host_attention}, {experts, point.experts}};
    for (int i = 0; i < 3; ++i) errors[i].push_back(std::abs(pairs[i][0] / pairs[i][1] - 1));
    fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.1f} | {:.1f} |\n",
               point.micro_batch, point.context, point.cache_load * 1e3, load * 1e3,
               point.host_attention * 1e3, attention * 1e3, point.experts * 1e3, experts * 1e3);
  }
  fmt::print("\nMedian error: cache up {:.0f} %, host attention {:.0f} %, experts {:.0f} %\n",
             100 * Median(errors[0]), 100 * Median(errors[1]), 100 * Median(errors[2]));
}

// Fig. 10: 2 x A100, the host's memory, bandwidth and peak 200 GB, 100 GB/s and 1.6 TFLOP/s times a
// ratio. Values are in the picture alone, so it is not scored.
void PrintFigure10() {
  fmt::print(
      "\n| Fig. 10: link, GB/s | ratio | attention | experts on host | cache on host | "
      "tokens/s |\n|---:|---:|---|---:|---:|---:|\n");
  planner::OffloadQuestion question;
  question.model = planner::OffloadModelOf(Model("Mixtral-8x7B"));
  question.fast = {.name = "2 x A100",
                   .flops = 600e12,
                   .bytes_per_second = 4000e9,
                   .bytes = 160e9 * kDeviceShare};
  question.prompt_tokens = 512;
  question.gen_tokens = 32;
  question.most_batch = 1 << 14;
  question.resident_steps = 20;
  for (const int link : {100, 200, 300, 400, 500}) {
    for (const int ratio : {1, 2, 4, 6, 8, 10}) {
      question.slow = {.name = "host",
                       .flops = 1.6e12 * ratio,
                       .bytes_per_second = 100e9 * ratio,
                       .bytes = 200e9 * ratio * kHostShare,
                       .up_bytes_per_second = link * 1e9};
      question.down_bytes_per_second = link * 1e9;
      const auto answer = planner::SearchOffloadPolicy(question);
      CHECK(answer.ok(), "{}", answer.error().message);
      const planner::OffloadPolicy& policy = answer->policy;
      fmt::print("| {} | {} | {} | {:.0f} % | {:.0f} % | {:.0f} |\n", link, ratio,
                 policy.attention_on_host ? "host" : "GPU", 100 * (1 - policy.weights_resident),
                 100 * (1 - policy.cache_resident), answer->figures.tokens_per_second);
    }
  }
}

int Run() {
  fmt::print("## Constants of the public code\n");
  PrintRuns(Constants::kPeaks);
  fmt::print("\n## With rates that the authors measured besides\n");
  const Shares shares = MeasuredShares();
  fmt::print(
      "\nOf the constants, Fig. 9 reaches: link {:.2f}, host's memory {:.2f}, device's memory "
      "{:.2f}\n",
      shares.link, shares.host_memory, shares.device_memory);
  PrintRuns(Constants::kProfiled);
  fmt::print("\n## The same, and prompts without tensor cores\n");
  PrintRuns(Constants::kScalarPrompts);
  fmt::print("\n## Figures\n");
  PrintFigure1();
  PrintFigure9();
  PrintFigure10();
  return 0;
}

}  // namespace
}  // namespace convene::papers

int main() { return convene::papers::Run(); }
