#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/quote.h"
#include "checkpoint/model_files.h"
#include "cli/commands.h"
#include "cli/compare_report.h"
#include "cli/format_words.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/parsed_by.h"
#include "cli/scored_text_options.h"
#include "cli/value_options.h"
#include "evaluate/reference_logits.h"
#include "evaluate/weight_errors.h"
#include "weights/packed_directory.h"

namespace convene::cli {
namespace {

using evaluate::ReferenceLogits;
using evaluate::RoundingScheme;
using evaluate::RoundingSchemes;

constexpr uint64_t kLogitsLimitBytes = uint64_t{4} << 30;

// A model beside the reference: in other formats, or with rounded weights.
struct Candidate {
  std::string name;
  engine::FormatWishes formats;
  std::optional<RoundingScheme> scheme = {};
};

bool IsOfExperts(model::TensorRole role) {
  using enum model::TensorRole;
  return role == kExpertGate || role == kExpertUp || role == kExpertDown;
}

// All matrices of the layers, or those of routed experts. Embedding and head stay, so that schemes
// differ in one thing.
weights::MatrixEdit EditFor(const RoundingScheme& scheme, bool experts_only) {
  return [scheme, experts_only](model::TensorRole role, int cols, std::vector<float>& values) {
    const std::optional<evaluate::MatrixKind> kind = evaluate::KindOf(role, false);
    if (!kind || *kind == evaluate::MatrixKind::kHead) return;
    if (experts_only && !IsOfExperts(role)) return;
    evaluate::Round(scheme, cols, values);
  };
}

Result<std::vector<RoundingScheme>> ParseSchemes(const std::vector<std::string>& names) {
  std::vector<RoundingScheme> schemes;
  for (const std::string& name : names) {
    if (name == "all") {
      schemes.assign(RoundingSchemes().begin(), RoundingSchemes().end());
      continue;
    }
    const std::optional<RoundingScheme> scheme = evaluate::RoundingSchemeFromName(name);
    if (!scheme) {
      std::string known_names = "all";
      for (const RoundingScheme& known : RoundingSchemes()) {
        known_names += fmt::format(", {}", known.name);
      }
      return Error{fmt::format("{} is no scheme; there are {}", Quote(name), known_names)};
    }
    schemes.push_back(*scheme);
  }
  return schemes;
}

Result<std::vector<engine::FormatWishes>> ParseFormats(const std::vector<std::string>& words) {
  std::vector<engine::FormatWishes> formats;
  for (const std::string& word : words) {
    const Result<engine::FormatWishes> read = ParseFormatWord(word);
    if (!read) return read.error();
    formats.push_back(*read);
  }
  return formats;
}

class Compare : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.description(
        app.get_description() +
        "\nPerplexity of a text, KL divergence in nats per token, top-1 agreement and |difference| "
        "of logits, against a reference. A format is WEIGHTS[:GROUP][:act=F][:kv=F], as int8, "
        "int4:64 or int8:act=bf16:kv=int8. Models are loaded in turn.");
    AddPath(app, "MODEL", model_.directory, "Directory of a Hugging Face checkpoint");
    app.add_option("--reference", reference_, "A format (default: bf16)")
        ->check(ParsedBy(ParseFormatWord))
        ->type_name("FORMAT");
    AddWords(app, "--formats", formats_, "To compare with it (default: int8,int4)")
        ->check(ListParsedBy(ParseFormats))
        ->type_name("FORMAT,...");
    AddWords(app, "--schemes", schemes_,
             "Also the reference with the layers' weights rounded: int8-tensor, int4-channel, "
             "int4-group32-zero, ... or all")
        ->check(ListParsedBy(ParseSchemes))
        ->type_name("NAME,...");
    app.add_flag("--schemes-of-experts", experts_only_,
                 "The schemes round the weights of routed experts alone")
        ->needs("--schemes");
    app.add_flag("--weight-errors", weight_errors_,
                 "Cosine and relative error of the weights for each scheme; needs no text");
    AddScoredTextOptions(app, text_options_);
    AddNumber(app, "--max-tokens", max_tokens_, {2, 1 << 30}, "Take only the first N tokens");
    AddThreadsOption(app, model_.load.num_threads);
    AddChunkOption(app, model_);
    AddJsonOption(app, json_path_);
  }

  bool refuses_ranks() const override { return true; }

  Status Run() override {
    if (const Status checked = CheckPredictsText(model_.directory); !checked) return checked;
    if (weights::IsPackedDirectory(model_.directory)) {
      return Error{fmt::format(
          "{} holds weights that are packed in one format; give the checkpoint they were made from",
          model_.directory)};
    }
    const Result<std::vector<RoundingScheme>> schemes = ParseSchemes(schemes_);
    if (!schemes) return schemes.error();
    nlohmann::ordered_json json = {{"model", model_.directory}};
    const bool has_text = !text_options_.text_path.empty() || !text_options_.tokens_path.empty();
    if (has_text || !weight_errors_) {
      if (const Status done = CompareAll(*schemes, &json); !done) return done;
    }
    if (weight_errors_) {
      const auto errors = evaluate::MeasureWeightErrors(
          model_.directory, schemes->empty() ? RoundingSchemes() : *schemes,
          model_.load.num_threads);
      if (!errors) return errors.error();
      for (const evaluate::SchemeErrors& row : *errors)
        json["weight_errors"].push_back(ToJson(row));
      if (const Status told = WriteReport({json_path_}, FormatErrors(*errors)); !told) return told;
    }
    return WriteJson(json_path_, json);
  }

 private:
  Result<std::vector<Candidate>> Candidates(const std::vector<RoundingScheme>& schemes,
                                            const engine::FormatWishes& reference) const {
    std::vector<Candidate> candidates;
    const Result<std::vector<engine::FormatWishes>> formats = ParseFormats(formats_);
    if (!formats) return formats.error();
    for (size_t i = 0; i < formats->size(); ++i) {
      candidates.push_back({.name = formats_[i], .formats = (*formats)[i]});
    }
    if (!schemes.empty() && kernels::IsInteger(*reference.weights)) {
      return Error{fmt::format(
          "--schemes rounds the weights of the reference, and {} would round them again; use "
          "--reference f32 or bf16",
          reference_)};
    }
    for (const RoundingScheme& scheme : schemes) {
      candidates.push_back({.name = fmt::format("{} as {}{}", reference_, scheme.name,
                                                experts_only_ ? " (experts)" : ""),
                            .formats = reference,
                            .scheme = scheme});
    }
    return candidates;
  }

  Status CompareAll(const std::vector<RoundingScheme>& schemes, nlohmann::ordered_json* json) {
    const Result<engine::FormatWishes> reference = ParseFormatWord(reference_);
    if (!reference) return reference.error();
    const Result<std::vector<Candidate>> candidates = Candidates(schemes, *reference);
    if (!candidates) return candidates.error();
    Result<evaluate::ScoredText> text = ReadScoredText(model_.directory, text_options_);
    if (!text) return text.error();
    if (max_tokens_) text->tokens.resize(std::min<size_t>(text->tokens.size(), *max_tokens_));
    const Result<model::ModelSpec> spec = checkpoint::OpenConfig(model_.directory);
    if (!spec) return spec.error();
    Result<ReferenceLogits> logits =
        ReferenceLogits::Reserve(*text, spec->vocab_size, kLogitsLimitBytes);
    if (!logits) return logits.error();

    model_.load.context = text->window;
    std::vector<ComparedModel> compared;
    if (const Status computed = RunReference(*reference, &*logits, &compared); !computed) {
      return computed;
    }
    for (const Candidate& candidate : *candidates) {
      if (const Status ran = RunCandidate(candidate, *logits, &compared); !ran) return ran;
    }
    json->update({{"tokens", text->tokens.size()},
                  {"scored_tokens", text->num_scored()},
                  {"window", text->window},
                  {"reference", ToJson(compared.front())}});
    (*json)["candidates"] = nlohmann::ordered_json::array();
    for (size_t i = 1; i < compared.size(); ++i) {
      (*json)["candidates"].push_back(ToJson(compared[i]));
    }
    return WriteReport({json_path_}, FormatComparison(compared, *text));
  }

  Status RunReference(const engine::FormatWishes& formats, ReferenceLogits* logits,
                      std::vector<ComparedModel>* compared) {
    model_.load.formats = formats;
    model_.load.edit = {};
    const Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_, nullptr);
    if (!model) return model.error();
    const Result<evaluate::LogitsDifference> itself = logits->Compute(**model);
    if (!itself) return itself.error();
    compared->push_back({.name = reference_,
                         .weights_bytes = (*model)->memory().weights_bytes(),
                         .difference = *itself});
    return {};
  }

  Status RunCandidate(const Candidate& candidate, const ReferenceLogits& logits,
                      std::vector<ComparedModel>* compared) {
    model_.load.formats = candidate.formats;
    model_.load.edit =
        candidate.scheme ? EditFor(*candidate.scheme, experts_only_) : weights::MatrixEdit();
    const Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_, nullptr);
    if (!model) return model.error();
    const Result<evaluate::LogitsDifference> difference = logits.Compare(**model);
    if (!difference) return difference.error();
    ComparedModel row{.name = candidate.name, .difference = *difference};
    if (!candidate.scheme) row.weights_bytes = (*model)->memory().weights_bytes();
    compared->push_back(std::move(row));
    return {};
  }

  ModelOptions model_;
  std::string reference_ = "bf16";
  std::vector<std::string> formats_ = {"int8", "int4"};
  std::vector<std::string> schemes_;
  bool experts_only_ = false;
  bool weight_errors_ = false;
  ScoredTextOptions text_options_;
  std::optional<int> max_tokens_;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakeCompare() { return std::make_unique<Compare>(); }

}  // namespace convene::cli
