#include "cli/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "checkpoint/model_files.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "engine/score_tokens.h"
#include "text/tokenizer.h"

namespace convene::cli {
namespace {

constexpr int kDefaultWindow = 512;

// -log of the probability that softmax(logits) gives to `token`.
double NegativeLogLikelihood(std::span<const float> logits, int32_t token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return std::log(sum) + top - logits[static_cast<size_t>(token)];
}

class Perplexity : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.description(
        app.get_description() +
        "\nPerplexity: exp of the mean negative log likelihood. The whole text is tokenized once, "
        "without special tokens, and cut into windows that do not overlap; each is scored from its "
        "second token on, and none sees another.");
    app.add_option("--text", text_path_, "The text ('-': stdin)")->type_name("FILE")->required();
    app.add_option("--window", window_, "Tokens per window (default: the context, at most 512)")
        ->type_name("N")
        ->check(CLI::Range(2, 1 << 24).description(""));
    AddJsonOption(app, json_path_);
    AddModelOptions(app, model_);
  }

  Status Run() override {
    const Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(model_.directory);
    if (!tokenizer) return tokenizer.error();
    const Result<std::string> text = ReadText(text_path_);
    if (!text) return text.error();
    const Result<std::vector<int32_t>> tokens =
        tokenizer->Encode(*text, {.add_special_tokens = false, .parse_special = false});
    if (!tokens) return tokens.error();
    if (tokens->size() < 2) {
      return Error{fmt::format("{} holds {} tokens; at least 2 are needed to score one", text_path_,
                               tokens->size())};
    }
    const Result<model::ModelSpec> spec = checkpoint::OpenConfig(model_.directory);
    if (!spec) return spec.error();
    const int window = window_.value_or(std::min(spec->max_positions, kDefaultWindow));
    if (window > spec->max_positions) {
      return Error{fmt::format("--window {} is more than the model's {} positions", window,
                               spec->max_positions)};
    }
    model_.load.context = window;
    const Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_);
    if (!model) return model.error();
    return Score(**model, *tokens, window);
  }

 private:
  Status Score(engine::LoadedModel& model, std::span<const int32_t> tokens, int window) {
    std::vector<std::span<const int32_t>> windows;
    for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(window)) {
      windows.push_back(tokens.subspan(
          begin, std::min<size_t>(static_cast<size_t>(window), tokens.size() - begin)));
    }
    double total = 0;
    int64_t num_scored = 0;
    const auto start = std::chrono::steady_clock::now();
    const Status scored = engine::ForEachLogits(
        model, windows, [&](int window_idx, int position, std::span<const float> logits) {
          const std::span<const int32_t> own = windows[static_cast<size_t>(window_idx)];
          if (position + 1 >= std::ssize(own)) return;
          total += NegativeLogLikelihood(logits, own[static_cast<size_t>(position) + 1]);
          ++num_scored;
        });
    if (!scored) return scored;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;

    const double mean = total / static_cast<double>(num_scored);
    const double tokens_per_s = static_cast<double>(tokens.size()) / elapsed.count();
    if (!json_path_.empty()) {
      const Status written = WriteJson(json_path_, {{"tokens", tokens.size()},
                                                    {"scored_tokens", num_scored},
                                                    {"window", window},
                                                    {"nll", mean},
                                                    {"perplexity", std::exp(mean)},
                                                    {"seconds", elapsed.count()},
                                                    {"tokens_per_s", tokens_per_s}});
      if (!written) return written;
    }
    return WriteReport(
        json_path_,
        fmt::format(
            "perplexity {:.4f}  (nll {:.5f} per token; {} of {} tokens scored in windows of "
            "{}; {:.1f} tokens/s)\n",
            std::exp(mean), mean, FormatCount(static_cast<uint64_t>(num_scored)),
            FormatCount(tokens.size()), window, tokens_per_s));
  }

  ModelOptions model_;
  std::string text_path_;
  std::optional<int> window_;
  std::string json_path_;
};

}  // namespace

std::unique_ptr<Command> MakePerplexity() { return std::make_unique<Perplexity>(); }

}  // namespace convene::cli
