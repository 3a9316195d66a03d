#include "cli/compare_report.h"

#include <fmt/format.h>

#include <cmath>

#include "base/units.h"
#include "cli/text_table.h"

namespace convene::cli {

using evaluate::SchemeErrors;

nlohmann::ordered_json ToJson(const ComparedModel& model) {
  const evaluate::LogitsDifference& difference = model.difference;
  nlohmann::ordered_json json = {{"name", model.name}};
  if (model.weights_bytes) json["weights_bytes"] = *model.weights_bytes;
  json.update({{"nll", difference.candidate_nll()},
               {"perplexity", std::exp(difference.candidate_nll())},
               {"perplexity_change", difference.perplexity_change()},
               {"standard_error", difference.standard_error()},
               {"kl", difference.mean_kl()},
               {"top1_agreement", difference.top1_agreement()},
               {"mean_logit_difference", difference.mean_difference()},
               {"max_logit_difference", difference.max_difference()}});
  return json;
}

nlohmann::ordered_json ToJson(const SchemeErrors& errors) {
  nlohmann::ordered_json json = {{"name", errors.scheme.name},
                                 {"bits_per_weight", errors.scheme.bits_per_weight()}};
  const auto add = [&](std::string_view name, const evaluate::WeightError& error) {
    if (error.stored == 0) return;
    json[std::string(name)] = {{"cosine", error.cosine()}, {"relative_error", error.relative()}};
  };
  for (int kind = 0; kind < evaluate::kNumMatrixKinds; ++kind) {
    add(Name(static_cast<evaluate::MatrixKind>(kind)), errors.by_kind[static_cast<size_t>(kind)]);
  }
  add("all", errors.total());
  return json;
}

std::string FormatErrors(const std::vector<SchemeErrors>& schemes) {
  TextTable table;
  std::vector<std::string> header = {"weights rounded", "bits", "cosine"};
  for (int kind = 0; kind < evaluate::kNumMatrixKinds; ++kind) {
    header.emplace_back(Name(static_cast<evaluate::MatrixKind>(kind)));
  }
  table.AddRow(header);
  for (const SchemeErrors& errors : schemes) {
    std::vector<std::string> row = {errors.scheme.name,
                                    fmt::format("{:.2f}", errors.scheme.bits_per_weight()),
                                    fmt::format("{:.6f}", errors.total().cosine())};
    for (const evaluate::WeightError& error : errors.by_kind) {
      row.push_back(error.stored == 0 ? "-" : fmt::format("{:.3f} %", 100 * error.relative()));
    }
    table.AddRow(row);
  }
  return "cosine of all, and relative error of each kind of matrix:\n" + table.Format();
}

std::string FormatComparison(const std::vector<ComparedModel>& models,
                             const evaluate::ScoredText& text) {
  TextTable table;
  table.AddRow({"", "weights", "perplexity", "change", "std. error", "KL", "same top-1",
                "|logits| mean", "max"});
  for (const ComparedModel& model : models) {
    const evaluate::LogitsDifference& difference = model.difference;
    std::vector<std::string> row = {model.name,
                                    model.weights_bytes ? FormatBytes(*model.weights_bytes) : "",
                                    fmt::format("{:.3f}", std::exp(difference.candidate_nll()))};
    if (&model != &models.front()) {
      row.insert(row.end(), {fmt::format("{:+.3f} %", 100 * difference.perplexity_change()),
                             fmt::format("{:.3f} %", 100 * difference.standard_error()),
                             fmt::format("{:.6f}", difference.mean_kl()),
                             fmt::format("{:.2f} %", 100 * difference.top1_agreement()),
                             fmt::format("{:.4f}", difference.mean_difference()),
                             fmt::format("{:.3f}", difference.max_difference())});
    }
    table.AddRow(row);
  }
  return fmt::format("{} of {} tokens scored in windows of {}\n",
                     FormatCount(static_cast<uint64_t>(text.num_scored())),
                     FormatCount(text.tokens.size()), text.window) +
         table.Format();
}

}  // namespace convene::cli
