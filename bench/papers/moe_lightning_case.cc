#include "bench/papers/moe_lightning_case.h"

#include <algorithm>
#include <string>

#include "bench/papers/paper_models.h"

namespace convene::papers {
namespace {

// How often FlexGen's attention on the host passes over keys and values in its memory. Its
// pytorch_backend.py (mha_gen) multiplies for each head of queries, so they are repeated for the
// heads that share them while they are laid out anew (2 bytes read, 2 written for each repetition),
// widened to float32 (2 and 4) and multiplied (4); for the 2 bytes that lie there.
double FlexGenPasses(const model::ModelSpec& spec) {
  const model::AttentionSpec& attention = spec.layers.front().attention;
  const double repetitions = double(attention.num_heads) / attention.num_kv_heads;
  return (2 + (2 + 2 + 4 + 4) * repetitions) / 2;
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
  planner::OffloadQuestion question = AskOffload(spec, *setting.machine, setting.num_gpus,
                                                 run.prompt_tokens, run.gen_tokens, run.batch);
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

}  // namespace

bool IsCalibrationRun(const PublishedRun& run) {
  const std::string setting = run.setting;
  return setting == "S1" || setting == "S2";
}

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

planner::OffloadQuestion AskOffload(const model::ModelSpec& spec, const PaperMachine& machine,
                                    int num_gpus, int prompt_tokens, int gen_tokens,
                                    int most_batch) {
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

SimulatedRun SimulateRun(const PublishedRun& run, OffloadOrder order, Constants constants) {
  const PaperSetting& setting = SettingOf(run.setting);
  const model::ModelSpec whole = Model(setting.model);
  SimulatedRun simulated{.policy = PolicyOf(run, setting, whole)};
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

}  // namespace convene::papers
