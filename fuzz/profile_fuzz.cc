// Any bytes as a machine's profile: an error, or rates in range that are written and read as the
// same again and from which any number of ranks can be priced. The same with a device, links and
// models of operators around it, whose predictions are finite wherever they are asked; and such a
// model, or what steps cost, alone, so that what others write of a machine need not be right first.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "cost/machine_profile.h"
#include "cost/rates.h"
#include "hardware/profile.h"

namespace {

namespace cost = convene::cost;

void PredictWith(const cost::OperatorModel& model) {
  for (const double value : {cost::kLeastValue, 1e-6, 1.0, 4096.0, cost::kMostValue}) {
    const std::vector<double> features(model.ranges.size(), value);
    const cost::OperatorPrediction prediction = model.Predict(features, value);
    for (const double seconds : {prediction.seconds, prediction.low, prediction.high}) {
      CHECK(std::isfinite(seconds) && seconds >= 0, "{}", seconds);
    }
  }
  CHECK(!cost::Describe(model).empty());
}

// Of tasks of any size.
void PriceBy(const cost::StepCosts& costs) {
  for (const double size : {0.0, 1.0, 1e9, 1e15}) {
    const cost::TaskParts parts{.product_flops = size,
                                .weight_bytes = size,
                                .groups = size,
                                .score_flops = size,
                                .cache_bytes = size,
                                .row_bytes = size};
    for (const auto& task : costs.tasks) {
      if (!task) continue;
      const double seconds = task->Seconds(parts);
      CHECK(std::isfinite(seconds) && seconds >= 0, "{}", seconds);
    }
  }
}

void ReadMachine(const nlohmann::json& json) {
  const auto machine = cost::MachineProfileFromJson(json);
  if (!machine) return;
  for (const auto& [name, model] : machine->operators) PredictWith(model);
  for (const cost::StepCosts& costs : machine->steps) PriceBy(costs);
  const auto again = cost::MachineProfileFromJson(cost::ToJson(*machine));
  CHECK(again.ok(), "{}", again.error().message);
  CHECK(again->operators == machine->operators && again->links == machine->links &&
        again->device == machine->device);
}

void ReadOperator(const nlohmann::json& json) {
  const auto model = cost::OperatorModelFromJson(json);
  if (!model) return;
  PredictWith(*model);
  const auto again = cost::OperatorModelFromJson(cost::ToJson(*model));
  CHECK(again.ok(), "{}", again.error().message);
  CHECK(*again == *model);
}

void ReadSteps(const nlohmann::json& json) {
  const auto costs = cost::StepCostsFromJson(json);
  if (!costs) return;
  PriceBy(*costs);
  const auto again = cost::StepCostsFromJson(cost::ToJson(*costs));
  CHECK(again.ok(), "{}", again.error().message);
  CHECK(*again == *costs);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace hardware = convene::hardware;
  const auto json = convene::ParseJson({reinterpret_cast<const char*>(data), size});
  if (!json) return 0;
  ReadMachine(*json);
  ReadOperator(*json);
  ReadSteps(*json);
  const auto profile = hardware::ProfileFromJson(*json);
  if (!profile) return 0;
  for (const double rate : {profile->f32_gflops, profile->bf16_gflops, profile->int8_gops,
                            profile->read_gbps, profile->disk_gbps, profile->huge_page_share}) {
    CHECK(std::isfinite(rate) && rate >= 0, "{}", rate);
  }
  for (const int count : {profile->num_numa_nodes, profile->num_interleaved_nodes,
                          profile->dense_from_rows, profile->expand_from_tokens}) {
    CHECK(count >= 0, "{}", count);
  }
  for (const hardware::GpuProfile& gpu : profile->gpus) {
    for (const double rate : {gpu.to_device_gbps, gpu.read_gbps, gpu.bf16_gflops, gpu.launch_us}) {
      CHECK(std::isfinite(rate) && rate >= 0, "{}", rate);
    }
  }
  for (const int cpu : profile->cpus) CHECK(cpu >= 0, "{}", cpu);
  const auto again = hardware::ProfileFromJson(hardware::ToJson(*profile));
  CHECK(again.ok(), "{}", again.error().message);
  CHECK(hardware::ToJson(*again) == hardware::ToJson(*profile));

  for (const int num_ranks : {1, 3, 4096}) {
    const convene::cost::Rates rates = convene::cost::RatesFromProfile(*profile, num_ranks);
    CHECK(rates.of(0).cores >= 1);
    for (const auto* curve : {&rates.of(0).flops, &rates.shared_memory}) {
      if (!curve->empty()) CHECK(curve->at(1) >= 0 && curve->at(1 << 20) == curve->rates.back());
    }
  }
  return 0;
}
