#include "bench/papers/moe_lightning_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bench/papers/moe_lightning_case.h"
#include "bench/papers/paper_models.h"
#include "planner/model_roofline.h"

namespace convene::papers {
namespace {

// Fig. 1's load: S1, MTBench, 128 generated, of Mixtral 8x7B.
constexpr int kPrompt = 77;
constexpr int kGenerated = 128;

// The throughput that a schedule reaches, prefill included, with a policy of so many sequences.
double ThroughputOf(OffloadOrder order, const planner::OffloadPolicy& policy,
                    const model::ModelSpec& spec, const OffloadRates& rates) {
  OffloadPass pass = {.order = order,
                      .micro_batches = policy.num_micro_batches(),
                      .micro_batch = double(policy.micro_batch),
                      .context = kPrompt + kGenerated / 2.0,
                      .weights_resident = policy.weights_resident};
  const double step = SecondsOfPass(spec, pass, rates);
  pass.is_prompt = true;
  pass.context = kPrompt;
  const double prefill = SecondsOfPass(spec, pass, rates);
  return policy.batch * double(kGenerated) / (prefill + (kGenerated - 1) * step);
}

// Fig. 1: how much memory of the host each schedule needs for a throughput.
void PrintFigureOne() {
  constexpr int kLeastGib = 96;
  constexpr int kMostGib = 384;
  constexpr int kStepGib = 16;
  const model::ModelSpec spec = Model("Mixtral-8x7B");
  // Without the weights, which every schedule keeps there: the memory that sequences take.
  const double weights = planner::OffloadModelOf(spec).StreamedElements() * 2 / kGib;
  struct Memory {
    double gib = 0;
    int batch = 0;
    double cgo = 0;
    double s4 = 0;
  };
  std::vector<Memory> memories;
  for (int gib = kLeastGib; gib <= kMostGib; gib += kStepGib) {
    PaperMachine machine = kT4;
    machine.host_memory_gib = gib / kHostShare;
    planner::OffloadQuestion question = AskOffload(spec, machine, 1, kPrompt, kGenerated, 1 << 14);
    question.micro_batches = {36};
    const auto answer = planner::SearchOffloadPolicy(question);
    if (!answer.ok()) continue;
    const OffloadRates rates = RatesOf(machine, 1, 1, Constants::kPeaks);
    for (const auto& way : answer->ways) {
      if (!way.policy.attention_on_host || way.policy.experts_on_host) continue;
      memories.push_back({.gib = double(gib),
                          .batch = way.policy.batch,
                          .cgo = ThroughputOf(OffloadOrder::kCgo, way.policy, spec, rates),
                          .s4 = ThroughputOf(OffloadOrder::kS4, way.policy, spec, rates)});
      break;
    }
  }
  fmt::print(
      "\n### Fig. 1: S1, 77 tokens of prompt, 128 generated, prefill included\n\nN: sequences of a "
      "step, the most that the memory holds. Factor: how much more memory S4 has than the least "
      "with which CGOPipe reaches S4's throughput; and the same besides the {:.0f} GiB of weights. "
      "Published: 2 to 3 times less.\n\n"
      "| host memory, GiB | N | CGOPipe, tokens/s | S4, tokens/s | CGOPipe reaches that with, GiB "
      "| "
      "factor | besides weights |\n|---:|---:|---:|---:|---:|---:|---:|\n",
      weights);
  for (const Memory& memory : memories) {
    fmt::print("| {:.0f} | {} | {:.1f} | {:.1f} |", memory.gib, memory.batch, memory.cgo,
               memory.s4);
    const auto reached = std::find_if(memories.begin(), memories.end(),
                                      [&](const Memory& other) { return other.cgo >= memory.s4; });
    if (reached == memories.end()) {
      fmt::print(" - | - | - |\n");
      continue;
    }
    const double besides = reached->gib - weights;
    fmt::print(" {:.0f} | {:.1f} | {} |\n", reached->gib, memory.gib / reached->gib,
               besides > 0 ? fmt::format("{:.1f}", (memory.gib - weights) / besides) : "-");
  }
}

// Fig. 4: the intensity of attention over a cache in the host's memory, and P1, below which moving
// data up is of no use. Constants of plots/roofline in the public code, which the text has not.
void PrintFigureFour() {
  constexpr int kContext = 512;
  constexpr double kExpertsMicroBatch = 128;
  const cost::HierarchicalRoofline roofline(
      {.name = "L4", .flops = 242e12, .bytes_per_second = 300e9},
      {.name = "host", .flops = 1.3e12, .bytes_per_second = 100e9, .up_bytes_per_second = 16e9});
  const planner::OffloadModel model = planner::OffloadModelOf(Model("Mixtral-8x7B"));
  const auto first = roofline.FirstTurningPoint();
  CHECK(first.has_value());
  const auto experts = planner::ExpertsWork(model, kExpertsMicroBatch, kExpertsMicroBatch, 2);
  fmt::print(
      "\n### Fig. 4: attention of Mixtral 8x7B on L4 with 512 tokens of context\n\nP1: the "
      "intensity below which it is of no use to move what lies in the host's memory to the device; "
      "P2 (Fig. 5, at micro-batch 128): the intensity of the experts below which the link is what "
      "holds them back. P1 is {:.2f} FLOP/B (published: 81.25, from the plot's constants), P2 "
      "{:.0f}.\n\n"
      "| keys and values | FLOP/B | lies below P1, published | predicted |\n|---|---:|---|---|\n",
      first->intensity, roofline.SecondTurningPoint(experts.fast_intensity()).intensity);
  for (const auto& [name, bytes] : {std::pair("float16", 2.0), std::pair("int4", 0.5)}) {
    const double intensity = planner::AttentionWork(model, kContext, bytes).slow_intensity();
    fmt::print("| {} | {:.1f} | yes | {} |\n", name, intensity,
               intensity < first->intensity ? "yes" : "no");
  }
}

// Fig. 9: seconds of one layer by the constants, each at the lower of its roofs.
void PrintFigureNine() {
  fmt::print(
      "\n### Fig. 9: seconds of one layer on S2's machine by the constants, in ms\n\nErrors are "
      "|predicted / published - 1|.\n\n| micro-batch | context | cache up: published | predicted | "
      "host "
      "attention: published | predicted | experts: published | predicted |\n");
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

planner::OffloadQuestion AskTwoA100(int link_gigabytes, int ratio) {
  planner::OffloadQuestion question;
  question.model = planner::OffloadModelOf(Model("Mixtral-8x7B"));
  question.fast = {.name = "2 x A100",
                   .flops = 600e12,
                   .bytes_per_second = 4000e9,
                   .bytes = 160e9 * kDeviceShare};
  question.slow = {.name = "host",
                   .flops = 1.6e12 * ratio,
                   .bytes_per_second = 100e9 * ratio,
                   .bytes = 200e9 * ratio * kHostShare,
                   .up_bytes_per_second = link_gigabytes * 1e9};
  question.down_bytes_per_second = link_gigabytes * 1e9;
  question.prompt_tokens = 512;
  question.gen_tokens = 32;
  question.most_batch = 1 << 14;
  question.resident_steps = 20;
  return question;
}

// Tokens per second of the best policy that attends on the device and keeps the whole cache there.
double BestWithResidentCache(const planner::OffloadQuestion& question) {
  double most = 0;
  for (int part = 0; part <= question.resident_steps; ++part) {
    for (int micro_batch = 1; micro_batch <= question.most_batch; ++micro_batch) {
      planner::OffloadPolicy policy = {.micro_batch = micro_batch,
                                       .weights_resident = double(part) / question.resident_steps,
                                       .cache_resident = 1};
      int low = 0;
      int high = question.most_batch / micro_batch;
      while (low < high) {  // micro-batches that fit
        const int middle = (low + high + 1) / 2;
        policy.batch = middle * micro_batch;
        if (FiguresOf(question, policy).fits) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      if (low == 0) break;  // nor do larger ones
      policy.batch = low * micro_batch;
      most = std::max(most, FiguresOf(question, policy).tokens_per_second);
    }
  }
  return most;
}

// Fig. 10: 2 x A100, the host's memory, bandwidth and peak 200 GB, 100 GB/s and 1.6 TFLOP/s times a
// ratio. Values are in the picture alone; what the text says of them is compared.
void PrintFigureTen() {
  fmt::print(
      "\n### Fig. 10: policies on 2 A100, by the link and how many times the base the host is\n\n"
      "The text: with a low ratio it is not beneficial to keep part of the cache on the host, even "
      "with the fastest link. The last column is what keeping it there gains over the best policy "
      "that attends on the GPUs with the whole cache there.\n\n"
      "| link, GB/s | ratio | attention | experts on host | cache on host | tokens/s | with the "
      "cache on the GPUs | gain of the host |\n|---:|---:|---|---:|---:|---:|---:|---:|\n");
  for (const int link : {100, 200, 300, 400, 500}) {
    for (const int ratio : {1, 2, 4, 6, 8, 10}) {
      const planner::OffloadQuestion question = AskTwoA100(link, ratio);
      const auto answer = planner::SearchOffloadPolicy(question);
      CHECK(answer.ok(), "{}", answer.error().message);
      const planner::OffloadPolicy& policy = answer->policy;
      const double rate = answer->figures.tokens_per_second;
      const double without = BestWithResidentCache(question);
      fmt::print("| {} | {} | {} | {:.0f} % | {:.0f} % | {:.0f} | {:.0f} | {:.1f} % |\n", link,
                 ratio, policy.attention_on_host ? "host" : "GPU",
                 100 * (1 - policy.weights_resident), 100 * (1 - policy.cache_resident), rate,
                 without, 100 * (rate / without - 1));
    }
  }
}

}  // namespace

void PrintFiguresOfMoeLightning() {
  fmt::print("\n## Figures\n");
  PrintFigureOne();
  PrintFigureFour();
  PrintFigureNine();
  PrintFigureTen();
}

}  // namespace convene::papers
