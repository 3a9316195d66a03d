#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/units.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/scored_text_options.h"
#include "engine/score_tokens.h"
#include "evaluate/logits_difference.h"

namespace convene::cli {
namespace {

class Perplexity : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.description(app.get_description() +
                    "\nPerplexity: exp of the mean negative log likelihood. The whole text is "
                    "tokenized once, without special tokens, and cut into windows that do not "
                    "overlap; each is scored from its second token on, and none sees another.");
    AddScoredTextOptions(app, text_options_);
    AddJsonOption(app, json_path_);
    AddModelOptions(app, model_);
  }

  std::string model_directory() const override { return model_.directory; }

  Status Run() override {
    if (const Status checked = CheckPredictsText(model_.directory); !checked) return checked;
    const Result<evaluate::ScoredText> text = ReadScoredText(model_.directory, text_options_);
    if (!text) return text.error();
    model_.load.context = text->window;
    const Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_, ranks());
    if (!model) return model.error();
    return model_.watch->WriteAfter(Score(**model, *text));
  }

 private:
  Status Score(engine::LoadedModel& model, const evaluate::ScoredText& text) {
    const std::vector<std::span<const int32_t>> windows = text.Windows();
    double total = 0;
    int64_t num_scored = 0;
    const auto start = std::chrono::steady_clock::now();
    const Status scored = engine::ForEachLogits(
        model, windows, [&](int window_idx, int position, std::span<const float> logits) {
          const std::span<const int32_t> own = windows[static_cast<size_t>(window_idx)];
          if (position + 1 >= std::ssize(own)) return;
          total += evaluate::NegativeLogLikelihood(logits, own[static_cast<size_t>(position) + 1]);
          ++num_scored;
        });
    if (!scored) return scored;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;

    const double mean = total / static_cast<double>(num_scored);
    const double tokens_per_s = static_cast<double>(text.tokens.size()) / elapsed.count();
    const Status written = WriteJson(json_path_, {{"tokens", text.tokens.size()},
                                                  {"scored_tokens", num_scored},
                                                  {"window", text.window},
                                                  {"nll", mean},
                                                  {"perplexity", std::exp(mean)},
                                                  {"seconds", elapsed.count()},
                                                  {"tokens_per_s", tokens_per_s}});
    if (!written) return written;
    return WriteReport(
        {json_path_},
        fmt::format("perplexity {:.4f}  (nll {:.5f} per token; {} of {} tokens scored in windows "
                    "of {}; {:.1f} tokens/s)\n",
                    std::exp(mean), mean, FormatCount(static_cast<uint64_t>(num_scored)),
                    FormatCount(text.tokens.size()), text.window, tokens_per_s));
  }

  ModelOptions model_;
  ScoredTextOptions text_options_;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakePerplexity() { return std::make_unique<Perplexity>(); }

}  // namespace convene::cli
