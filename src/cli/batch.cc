#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/message.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "cli/batch_input.h"
#include "cli/batch_lengths.h"
#include "cli/batch_progress.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/paged_figures.h"
#include "cli/sampling_options.h"
#include "cli/value_options.h"
#include "engine/engine.h"
#include "hardware/memory_status.h"
#include "openai/answer.h"
#include "openai/batch_line.h"
#include "openai/batch_results.h"
#include "text/chat_template.h"

namespace convene::cli {
namespace {

using openai::BatchLine;
using openai::BatchResults;

// One request on its way.
struct Running {
  BatchLine line;
  int64_t line_number = 0;
  openai::Answer answer;
  RequestProgress progress;
};

class Batch : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.description(app.get_description() +
                    "\nA request without seed gets one from its custom_id, so that equal prompts "
                    "differ where tokens are sampled, and a rerun gives the same answers. Exit "
                    "status 3: a part of the lines was refused; their results say why.");
    AddPath(app, "--input", input_path_, "OpenAI batch requests, a JSON object per line")
        ->type_name("FILE.jsonl")
        ->required();
    AddPath(app, "--output", output_path_,
            "Results are appended here as they finish; answers already there are not redone, "
            "refused lines are tried again ('-': standard output, all of them)")
        ->type_name("FILE.jsonl")
        ->check(WritableFile())
        ->required();
    model_.max_batch = AddNumber(
        app, "--max-batch", model_.load.max_sequences, {1, plan::kMostSequences},
        "Requests that run together, 1 to 4096 (default: the fastest, by kept costs or by rates "
        "of disk, memory and cores)");
    AddJsonOption(app, json_path_);
    AddContextOption(app, model_);
    AddModelOptions(app, model_);
    AddCapacityOption(app, model_);
    AddPath(
        app, "--spill-dir", model_.load.spill_directory,
        "Where experts are read from a disk: directory on a disk for keys and values that have no "
        "room, so that more requests run together; they vanish with the program (default: "
        "--page-dir; none: all stay in memory)")
        ->type_name("DIR")
        ->group(kRareOptions);
    app.add_flag("--padded", is_padded_,
                 "To measure what padding costs: compute as many tokens for each prompt, and keep "
                 "as much of the KV cache, as for the longest one, which counts for the context. "
                 "Answers are the same")
        ->group(kRareOptions);
    app.add_flag("--no-verify", no_verify_,
                 "Do not try plans before a long input: trust what is predicted of them")
        ->group(kRareOptions);
  }

  std::string model_directory() const override { return model_.directory; }

  bool left_out_a_part() const override { return num_refused_ > 0; }

  Status Run() override {
    const Result<std::string> input = ReadText(input_path_);
    if (!input) return input.error();
    Result<BatchResults> results = BatchResults::Open(output_path_);
    if (!results) return results.error();
    results_ = &*results;
    input_ = ReadBatchInput(*input, results->earlier().finished);
    if (input_.pending.empty() && input_.duplicates.empty()) {
      PrintNote("batch: {}\n", input_.num_skipped == 0
                                   ? fmt::format("{} holds no requests", input_path_)
                                   : fmt::format("nothing to do, all {} requests are in {}",
                                                 input_.num_skipped, output_path_));
      const Status closed = results->Close();
      return closed ? WriteFigures(0, 0) : closed;
    }
    if (const Status loaded = LoadEngine(); !loaded) return loaded;
    if (const Status forgotten = ForgetRetried(input_, *results); !forgotten) return forgotten;
    const Status done = RunAll();
    const Status closed = results->Close();
    if (!done) return done;
    if (!closed) return closed;
    return model_.watch->WriteAfter(Report());
  }

 private:
  Status LoadEngine() {
    Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(model_.directory);
    if (!tokenizer) return tokenizer.error();
    reader_.chat_template = text::ChatTemplate::Load(model_.directory);
    const Result<model::ModelSpec> spec = ReadSpec(model_.directory);
    if (!spec) return spec.error();
    const BatchLengths lengths(input_.pending, reader_, *tokenizer);
    if (spec->has_encoder()) {
      // What the longest of its inputs needs, as `encode` does.
      const int longest = lengths.LongestPrompt(std::numeric_limits<int>::max());
      FitInputs(model_, static_cast<size_t>(std::max(1, longest)));
    }
    const auto configuration = checkpoint::ReadModelConfiguration(model_.directory);
    if (!configuration) return configuration.error();
    reader_.max_new_tokens = configuration->generation_config.max_new_tokens;
    const int context = engine::ContextOf(*spec, model_.load);
    if (is_padded_) padded_length_ = lengths.LongestPrompt(context);
    ExpectLengths(lengths, context, spec->has_encoder());
    Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_, ranks());
    if (!model) return model.error();
    NoteUnknownFields((*model)->generation_config());
    defaults_ = engine::DefaultSampling((*model)->generation_config());
    engine_ = std::make_unique<engine::Engine>(*std::move(model), *std::move(tokenizer),
                                               model_.load.max_sequences);
    memory_.Sample();
    ExpectRequests();
    return {};
  }

  // For the plan.
  void ExpectLengths(const BatchLengths& lengths, int context, bool has_encoder) {
    std::vector<planner::RequestLengths> some =
        lengths.Some(context, padded_length_, model_.workload.requests.front().gen_tokens);
    if (some.empty()) return;
    const int64_t num_requests = std::ssize(input_.pending);
    model_.workload.requests = std::move(some);
    model_.load.batch_work = {.num_requests = num_requests,
                              .prompt_tokens = model_.workload.mean_prompt_tokens(),
                              .gen_tokens = std::max(1.0, model_.workload.mean_gen_tokens()),
                              .longest = lengths.LongestRequest(context, padded_length_),
                              .chooses_sequences = !model_.says_max_batch(),
                              .plans = !model_.plan.no_plan,
                              // An encoder sees each of its inputs in one step.
                              .chooses_step_tokens = !model_.says_chunk() && !has_encoder};
    model_.num_requests = num_requests;
    model_.knows_work = true;
    model_.verifies = !no_verify_;
  }

  // Requests that fit at once are there at once; more of them are a stream.
  void ExpectRequests() {
    const plan::Plan& plan = engine_->model().plan();
    if (std::ssize(input_.pending) <= model_.load.max_sequences) {
      engine_->Expect(engine::Arrivals::kAtOnce);
    } else if (plan.changes_layout() && plan.phase_change.epoch_steps == 0) {
      PrintNote(
          "note: experts stay divided as in prefill, since {} requests are more than the {} that "
          "run together (--max-batch) and the plan has no epochs (--epoch-steps)\n",
          input_.pending.size(), model_.load.max_sequences);
    }
  }

  Status RunAll() {
    const auto start = std::chrono::steady_clock::now();
    // Enough waiting requests that a finished one is replaced at once.
    const int max_queued = 2 * model_.load.max_sequences;
    BatchProgress progress(BatchCounts(
        std::ssize(input_.pending) + std::ssize(input_.duplicates), std::ssize(input_.pending),
        model_.workload.mean_prompt_tokens(), model_.workload.mean_gen_tokens()));
    progress_ = &progress;
    size_t next = 0;
    while (next < input_.pending.size() || !running_.empty()) {
      while (next < input_.pending.size() && engine_->num_requests() < max_queued) {
        if (const Status submitted = Submit(input_.pending[next++]); !submitted) return submitted;
      }
      for (engine::Update& update : engine_->Step()) {
        if (const Status taken = Take(update); !taken) return taken;
      }
      progress_->Update();
    }
    for (const InputLine& line : input_.duplicates) {
      const Status written = Refuse(line.number, openai::CustomIdOf(line.text),
                                    "this custom_id has already been used by another line");
      if (!written) return written;
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    elapsed_s_ = elapsed.count();
    memory_.Sample();
    return {};
  }

  Status Refuse(int64_t number, const std::optional<std::string>& custom_id,
                const std::string& message, const char* code = "invalid_request") {
    ++num_refused_;
    return results_->Append(openai::BatchError(number, custom_id, code, message));
  }

  // Before the engine had it.
  Status RefuseUnbegun(int64_t number, const std::optional<std::string>& custom_id,
                       const Error& error) {
    progress_->counts().EndUnbegun(/*was_waiting=*/true);
    return Refuse(number, custom_id, error.message);
  }

  // Of its answer, as far as it says; otherwise as many as are usual.
  int64_t MostTokens(const BatchLine& line, int64_t prompt_tokens) const {
    const auto usual = static_cast<int>(model_.workload.mean_gen_tokens());
    const int64_t room = engine_->model().context() - prompt_tokens;
    return std::clamp<int64_t>(reader_.MaxTokens(line).value_or(usual), 1,
                               std::max<int64_t>(1, room));
  }

  // A line that cannot be run gets an error result; an error here is about the result file.
  Status Submit(const InputLine& input) {
    Result<BatchLine> line = openai::ParseBatchLine(input.text, defaults_);
    if (!line) return RefuseUnbegun(input.number, openai::CustomIdOf(input.text), line.error());
    const Result<std::vector<int32_t>> prompt = reader_.PromptOf(*line, engine_->tokenizer());
    if (!prompt) return RefuseUnbegun(input.number, line->custom_id, prompt.error());
    engine::Request request = line->body.request;
    request.prompt = *prompt;
    request.max_tokens = reader_.MaxTokens(*line);
    request.padded_length = padded_length_;
    request.reports_progress = true;
    const Result<engine::RequestId> id = engine_->Submit(std::move(request));
    if (!id) return RefuseUnbegun(input.number, line->custom_id, id.error());
    if (is_padded_) num_padding_ += padded_length_ - std::ssize(*prompt);
    Running running;
    running.line = *std::move(line);
    running.line_number = input.number;
    running.answer.num_prompt_tokens = prompt->size();
    running.progress = {.prompt_tokens = std::max<int64_t>(std::ssize(*prompt), padded_length_),
                        .most_tokens = MostTokens(running.line, std::ssize(*prompt))};
    progress_->counts().Begin(running.progress);
    running_.emplace(*id, std::move(running));
    return {};
  }

  Status Take(engine::Update& update) {
    Running& running = running_.at(update.request);
    if (update.error && update.error->kind == ErrorKind::kDataLoss) return StopFor(*update.error);
    if (update.progress) {
      progress_->counts().Compute(running.progress, update.progress->num_computed);
      return {};
    }
    if (update.error) {
      progress_->counts().End(running.progress);
      const Status written = Refuse(running.line_number, running.line.custom_id,
                                    update.error->message, "server_error");
      running_.erase(update.request);
      return written;
    }
    openai::Answer& answer = running.answer;
    answer.text += update.text;
    answer.num_cached_tokens = static_cast<size_t>(update.num_reused_tokens);
    if (!update.is_end_of_text) answer.tokens.push_back(std::move(update.token));
    ++num_generated_;
    progress_->counts().Generate(running.progress);
    if (!update.finish) return {};
    progress_->counts().End(running.progress);
    answer.finish = update.finish;
    const BatchLine& line = running.line;
    const openai::AnswerHead head = {
        .id = fmt::format("{}-{}", line.body.is_chat ? "chatcmpl" : "cmpl", running.line_number),
        .created = static_cast<int64_t>(std::time(nullptr)),
        .model = line.body.model};
    const Status written = results_->Append(openai::BatchAnswer(
        running.line_number, line.custom_id,
        openai::AnswerBody(engine_->tokenizer(), line.body, std::span(&answer, 1), head)));
    running_.erase(update.request);
    ++num_finished_;
    return written;
  }

  // A disk that fails, or a file of the model that is damaged: the requests that come after would
  // end in the same way, and none of them is at fault.
  Error StopFor(const Error& error) const {
    return {fmt::format(
                "{}; {} answered before that {} in {}, and the same command goes on from "
                "there",
                error.message,
                FormatCount(static_cast<uint64_t>(num_finished_ + input_.num_skipped), "request"),
                num_finished_ + input_.num_skipped == 1 ? "is" : "are", OutputName()),
            error.kind};
  }

  Status Report() {
    const double tokens_per_s = static_cast<double>(num_generated_) / std::max(elapsed_s_, 1e-9);
    PrintNote(
        "batch: {} answered, {} refused, {} already there; {} in {:.1f} s ({:.1f} "
        "tokens/s, {} reused) -> {}\n",
        num_finished_, num_refused_, input_.num_skipped,
        FormatCount(static_cast<uint64_t>(num_generated_), "token"), elapsed_s_, tokens_per_s,
        FormatCount(static_cast<uint64_t>(engine_->num_reused_tokens()), "prompt token"),
        OutputName());
    if (is_padded_) {
      PrintNote("padded: each prompt to {}, {} for nothing\n",
                FormatCount(static_cast<uint64_t>(padded_length_), "token"),
                FormatCount(static_cast<uint64_t>(num_padding_), "token"));
    }
    PrintNote("{}{}{}", DescribeChanges(engine_->phase_changes()),
              DescribePages(engine_->model().paged()),
              DescribeSpill(engine_->model().spill_statistics()));
    if (num_refused_ > 0) {
      PrintError(fmt::format(
          "{} of {} lines {} refused; {} says why, and the same command tries them again",
          num_refused_, num_refused_ + num_finished_ + input_.num_skipped,
          num_refused_ == 1 ? "was" : "were", OutputName()));
    }
    return WriteFigures(tokens_per_s, engine_->num_reused_tokens());
  }

  std::string OutputName() const { return output_path_ == "-" ? "standard output" : output_path_; }

  Status WriteFigures(double tokens_per_s, int64_t num_reused) const {
    nlohmann::ordered_json json = {{"answered", num_finished_},
                                   {"refused", num_refused_},
                                   {"already_there", input_.num_skipped},
                                   {"generated_tokens", num_generated_},
                                   {"reused_prompt_tokens", num_reused},
                                   {"padding_tokens", num_padding_},
                                   {"max_batch", model_.load.max_sequences},
                                   {"seconds", elapsed_s_},
                                   {"tokens_per_s", tokens_per_s}};
    // Where nothing was to do, no model was loaded.
    if (engine_ != nullptr) {
      json["chosen"] = ChosenFigures(engine_->model());
      json["paged"] = PagedFigures(engine_->model());
      json["spilled"] = SpillFigures(engine_->model());
      json["peak_resident_bytes"] = memory_.peak_bytes();
    }
    return WriteJson(json_path_, json);
  }

  ModelOptions model_{.directory = {}, .load = {.max_sequences = 32}};
  std::string input_path_;
  std::string output_path_;
  std::string json_path_;
  bool no_verify_ = false;
  bool is_padded_ = false;
  int padded_length_ = 0;  // of each prompt; 0: they are not padded

  BatchResults* results_ = nullptr;
  BatchInput input_;
  LineReader reader_;
  std::unique_ptr<engine::Engine> engine_;
  engine::SamplingOptions defaults_;
  std::map<engine::RequestId, Running> running_;
  BatchProgress* progress_ = nullptr;  // while requests run
  int64_t num_finished_ = 0;
  int64_t num_refused_ = 0;
  int64_t num_generated_ = 0;
  int64_t num_padding_ = 0;
  double elapsed_s_ = 0;
  hardware::PeakMemory memory_;
};

}  // namespace

std::unique_ptr<Command> MakeBatch() { return std::make_unique<Batch>(); }

}  // namespace convene::cli
