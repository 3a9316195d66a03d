#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/message.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/paged_figures.h"
#include "cli/sampling_options.h"
#include "cli/value_options.h"
#include "engine/engine.h"
#include "hardware/memory_status.h"
#include "text/tokenizer.h"

namespace convene::cli {
namespace {

constexpr int kDefaultMaxTokens = 256;

class RunPrompt : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    CLI::Option* prompt = AddText(app, "-p,--prompt", prompt_, "The text to continue");
    AddPath(app, "--prompt-file", prompt_path_,
            "Read it from a file, less its last line break (default '-': stdin)")
        ->excludes(prompt);
    AddSamplingOptions(app, sampling_, fmt::to_string(kDefaultMaxTokens));
    AddJsonOption(app, json_path_);
    AddContextOption(app, model_);
    AddModelOptions(app, model_);
    AddCapacityOption(app, model_);
  }

  std::string model_directory() const override { return model_.directory; }

  Status Run() override {
    // First what is small and may be wrong.
    if (const Status checked = CheckSampling(sampling_); !checked) return checked;
    Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(model_.directory);
    if (!tokenizer) return tokenizer.error();
    const Result<std::string> prompt = ReadPrompt();
    if (!prompt) return prompt.error();
    const Result<std::vector<int32_t>> tokens = tokenizer->Encode(*prompt);
    if (!tokens) return tokens.error();
    if (tokens->empty()) return Error{"the prompt is empty; give --prompt TEXT"};
    const Result<checkpoint::ModelConfiguration> config =
        checkpoint::ReadModelConfiguration(model_.directory);
    if (!config) return config.error();
    if (config->spec.has_encoder()) FitInputs(model_, tokens->size());
    const std::optional<int> max_tokens =
        RequestOf(sampling_, config->generation_config, kDefaultMaxTokens).max_tokens;
    ExpectRequest(config->spec, static_cast<int>(tokens->size()), max_tokens.value_or(1));

    Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_, ranks());
    if (!model) return model.error();
    NoteUnknownFields((*model)->generation_config());
    engine::Engine engine(*std::move(model), *std::move(tokenizer), /*max_sequences=*/1);
    engine.Expect(engine::Arrivals::kAtOnce);
    memory_.Sample();
    engine::Request request =
        RequestOf(sampling_, engine.model().generation_config(), kDefaultMaxTokens);
    request.prompt = *tokens;
    request.continues_prompt = true;
    seed_ = request.sampling.seed;
    const Status generated = Generate(engine, std::move(request));
    if (!generated) return generated;
    memory_.Sample();
    PrintNote("{}", DescribePages(engine.model().paged()));
    return model_.watch->WriteAfter(Report(engine));
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Of the answer as much as there is room for: of an encoder-decoder beside its start alone.
  // Where experts are read from a disk, each step reads those that it wants: a long prompt is to
  // take few. An encoder's inputs are whole, a plan says itself what there is memory for, and of a
  // GPU only batches are weighed.
  void ExpectRequest(const model::ModelSpec& spec, int num_prompt_tokens, int max_tokens) {
    const int room =
        engine::ContextOf(spec, model_.load) - (spec.has_encoder() ? 1 : num_prompt_tokens);
    model_.workload.requests = {{num_prompt_tokens, std::max(1, std::min(max_tokens, room))}};
    const bool is_alone = ranks() == nullptr || ranks()->size() == 1;
    const bool is_said = model_.says_chunk() || !model_.plan.path.empty();
    if (!is_alone || is_said || spec.has_encoder() || model_.load.gpu) return;
    const planner::RequestLengths& lengths = model_.workload.requests.front();
    model_.load.batch_work = {.prompt_tokens = static_cast<double>(lengths.prompt_tokens),
                              .gen_tokens = static_cast<double>(lengths.gen_tokens),
                              .chooses_step_tokens = true};
    model_.load.spill_directory = engine::kNoSpill;
  }

  Result<std::string> ReadPrompt() const {
    if (prompt_) return *prompt_;
    Result<std::string> text = ReadText(prompt_path_);
    if (text && text->ends_with('\n')) text->pop_back();
    return text;
  }

  Status Generate(engine::Engine& engine, engine::Request request) {
    num_prompt_tokens_ = request.prompt.size();
    most_tokens_ = request.max_tokens;
    context_ = engine.model().context();
    const Clock::time_point start = Clock::now();
    Clock::time_point first = start;
    const Result<engine::RequestId> id = engine.Submit(std::move(request));
    if (!id) return id.error();
    while (engine.num_requests() > 0) {
      for (const engine::Update& update : engine.Step()) {
        if (update.error) {
          const Status ended = EndLine();
          return ended ? *update.error : ended;
        }
        if (num_generated_++ == 0) first = Clock::now();
        if (update.finish) finish_ = *update.finish;
        text_ += update.text;
        if (json_path_ == "-") continue;  // standard output belongs to the JSON
        if (const Status shown = ShowOutput(update.text); !shown) return shown;
      }
    }
    if (const Status ended = EndLine(); !ended) return ended;
    first_token_s_ = std::chrono::duration<double>(first - start).count();
    decode_s_ = std::chrono::duration<double>(Clock::now() - first).count();
    return {};
  }

  // Of the text on standard output.
  Status EndLine() const { return json_path_ == "-" ? Status() : ShowOutput("\n"); }

  // Nothing: the answer is as long as it was to be.
  std::string DescribeEnd() const {
    const bool is_cut = finish_ == engine::FinishReason::kLength &&
                        (!most_tokens_ || num_generated_ < *most_tokens_);
    if (!is_cut) return "";
    return fmt::format("the answer ends where the context of {} is full: --context raises it\n",
                       FormatCount(static_cast<uint64_t>(context_), "token"));
  }

  Status Report(engine::Engine& engine) {
    const runtime::PhaseChanges& changes = engine.phase_changes();
    const double prompt_rate = static_cast<double>(num_prompt_tokens_) / first_token_s_;
    const double decode_rate =
        num_generated_ > 1 ? static_cast<double>(num_generated_ - 1) / decode_s_ : 0.0;
    PrintNote(
        "prompt: {}, first token after {:.3f} s ({:.1f} tokens/s)\n"
        "generated: {}, {:.1f} tokens/s; seed {}; peak memory {}\n{}{}",
        FormatCount(num_prompt_tokens_, "token"), first_token_s_, prompt_rate,
        FormatCount(static_cast<uint64_t>(num_generated_), "token"), decode_rate, seed_,
        FormatBytes(memory_.peak_bytes()), DescribeEnd(), DescribeChanges(changes));
    return WriteJson(json_path_,
                     {{"text", text_},
                      {"prompt_tokens", num_prompt_tokens_},
                      {"generated_tokens", num_generated_},
                      {"finish_reason", finish_ == engine::FinishReason::kStop ? "stop" : "length"},
                      {"first_token_s", first_token_s_},
                      {"prompt_tokens_per_s", prompt_rate},
                      {"tokens_per_s", decode_rate},
                      {"seed", seed_},
                      {"experts_moved", ToJson(changes)},
                      {"paged", PagedFigures(engine.model())},
                      {"peak_resident_bytes", memory_.peak_bytes()}});
  }

  ModelOptions model_;
  SamplingFlags sampling_;
  std::optional<std::string> prompt_;
  std::string prompt_path_ = "-";
  std::string json_path_;

  hardware::PeakMemory memory_;
  uint64_t seed_ = 0;
  std::string text_;
  size_t num_prompt_tokens_ = 0;
  int64_t num_generated_ = 0;
  std::optional<int> most_tokens_;  // that were asked for
  int context_ = 0;
  engine::FinishReason finish_ = engine::FinishReason::kStop;
  double first_token_s_ = 0;
  double decode_s_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeRun() { return std::make_unique<RunPrompt>(); }

}  // namespace convene::cli
