#include "plan/pipeline_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/quote.h"
#include "plan/json_range.h"

namespace convene::plan {
namespace {

using nlohmann::json;
using strategy::kMostChunks;
using strategy::kMostMicroBatches;

Status CheckChunks(const json& chunks) {
  if (IsBetween(chunks, 1, kMostChunks)) return {};
  return Error{fmt::format("a pipeline of {} chunks is out of range; it must be 1 to {}, or auto",
                           chunks.dump(), kMostChunks)};
}

Status CheckMicroBatches(const json& micro_batches) {
  if (IsBetween(micro_batches, 1, kMostMicroBatches)) return {};
  return Error{fmt::format("{} micro-batches are out of range; they must be 1 to {}",
                           micro_batches.dump(), kMostMicroBatches)};
}

bool IsListOfNumbers(const json& value) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const json& one) { return one.is_number(); });
}

// Of a pipeline that has some.
Status CheckCuts(const strategy::Pipeline& pipeline) {
  if (pipeline.cut != strategy::ChunkCut::kExperts) {
    return Error{"cuts say where chunks of experts end: they need \"cut\": \"experts\""};
  }
  if (std::ssize(pipeline.cuts) != pipeline.chunks - 1) {
    return Error{fmt::format("{} cuts for {} chunks: there must be one less than chunks",
                             pipeline.cuts.size(), pipeline.chunks)};
  }
  double before = 0;
  for (const double cut : pipeline.cuts) {
    if (!(cut > before && cut < 1)) {
      return Error{
          fmt::format("a cut at {} is out of place: cuts are parts of a rank's experts, "
                      "above 0 and below 1, each greater than the one before",
                      cut)};
    }
    before = cut;
  }
  return {};
}

}  // namespace

nlohmann::ordered_json PipelineToJson(const Plan& plan) {
  nlohmann::ordered_json pipeline = {{"chunks", plan.pipeline.chunks}};
  if (plan.auto_pipeline) pipeline["chunks"] = "auto";
  pipeline["cut"] = Name(plan.pipeline.cut);
  if (!plan.pipeline.cuts.empty()) pipeline["cuts"] = plan.pipeline.cuts;
  pipeline["overlap"] = plan.pipeline.overlap;
  pipeline["micro_batches"] = plan.pipeline.micro_batches;
  if (plan.cut_from_tokens > 0) pipeline["from_tokens"] = plan.cut_from_tokens;
  if (plan.layout.disaggregates) pipeline["order"] = Name(plan.pipeline.order);
  return pipeline;
}

Status ReadPipeline(const json& object, Plan* plan) {
  if (!object.is_object()) return Error{"pipeline is not an object"};
  for (const auto& [key, value] : object.items()) {
    if (key == "chunks" && value == "auto") {
      plan->auto_pipeline = true;
    } else if (key == "chunks" && value.is_number_integer()) {
      if (Status checked = CheckChunks(value); !checked) return checked;
      plan->pipeline.chunks = value.get<int>();
    } else if (key == "micro_batches" && value.is_number_integer()) {
      if (Status checked = CheckMicroBatches(value); !checked) return checked;
      plan->pipeline.micro_batches = value.get<int>();
    } else if (key == "from_tokens" && value.is_number_integer() &&
               IsBetween(value, 0, kMostCutFromTokens)) {
      plan->cut_from_tokens = value.get<int>();
    } else if (key == "cut" && value.is_string()) {
      const auto cut = CutFromName(value.get<std::string>());
      if (!cut) return cut.error();
      plan->pipeline.cut = *cut;
    } else if (key == "cuts" && IsListOfNumbers(value)) {
      plan->pipeline.cuts = value.get<std::vector<double>>();
    } else if (key == "overlap" && value.is_boolean()) {
      plan->pipeline.overlap = value.get<bool>();
    } else if (key == "order" && value.is_string()) {
      const auto order = OrderFromName(value.get<std::string>());
      if (!order) return order.error();
      plan->pipeline.order = *order;
    } else {
      return Error{fmt::format(
          "pipeline.{} is not known or of the wrong kind; there are chunks (a whole number or "
          "\"auto\"), cut and order (texts), cuts (a list of numbers), overlap (true or false), "
          "micro_batches (a whole number) and from_tokens (0 to {})",
          Quote(key), kMostCutFromTokens)};
    }
  }
  return {};
}

Status ParsePipeline(std::string_view text, Plan* plan) {
  plan->pipeline.cuts.clear();
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    const auto cut = CutFromName(text.substr(colon + 1));
    if (!cut) return cut.error();
    plan->pipeline.cut = *cut;
    text = text.substr(0, colon);
  }
  plan->auto_pipeline = text == "auto";
  if (plan->auto_pipeline) return {};
  int chunks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), chunks);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Error{fmt::format("a pipeline is a number of chunks or auto, not {}", Quote(text))};
  }
  if (Status checked = CheckChunks(chunks); !checked) return checked;
  plan->pipeline.chunks = chunks;
  return {};
}

Status CheckPipeline(const Plan& plan) {
  const strategy::Pipeline& pipeline = plan.pipeline;
  if (!pipeline.cuts.empty()) {
    if (Status fit = CheckCuts(pipeline); !fit) return fit;
  }
  if (pipeline.overlap) return {};
  if (plan.auto_pipeline) {
    return Error{
        "chunks are chosen by what they let overlap, which is nothing with --no-overlap (overlap "
        "of the plan's pipeline): give their number, for instance --pipeline 1 (chunks of the "
        "plan's pipeline), or allow overlap"};
  }
  if (pipeline.micro_batches == 1) return {};
  return Error{
      fmt::format("{} micro-batches without overlap only cost time: one computes while "
                  "another one exchanges; choose 1, or allow overlap",
                  pipeline.micro_batches)};
}

}  // namespace convene::plan
