#include "cli/chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/message.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/sampling_options.h"
#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace convene::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kHelp =
    "Ctrl-C ends an answer; /reset starts over; /exit or Ctrl-D leaves; /help says this.\n";

class Chat : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("--system", system_, "What the model is told before the conversation")
        ->type_name("TEXT");
    AddSamplingOptions(app, sampling_, "what the context holds");
    AddContextOption(app, model_options_);
    AddModelOptions(app, model_options_);
  }

  std::string model_directory() const override { return model_options_.directory; }

  Status Run() override {
    // First what is small and may be wrong.
    if (const Status checked = CheckSampling(sampling_); !checked) return checked;
    Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(model_options_.directory);
    if (!tokenizer) return tokenizer.error();
    const Result<text::ChatTemplate> chat_template =
        text::ChatTemplate::Load(model_options_.directory);
    if (!chat_template) return chat_template.error();
    Result<std::unique_ptr<engine::LoadedModel>> model = LoadModel(model_options_, ranks());
    if (!model) return model.error();
    engine::Engine engine(*std::move(model), *std::move(tokenizer), /*max_sequences=*/1);
    engine_ = &engine;
    chat_template_ = &*chat_template;
    return model_options_.watch->WriteAfter(Converse());
  }

 private:
  Status Converse() {
    InterruptWatch interrupt;
    is_interactive_ = isatty(STDIN_FILENO) == 1;
    if (is_interactive_) {
      PrintNoteText(kHelp);
    }
    Reset();
    while (const std::optional<std::string> turn = ReadTurn()) {
      if (*turn == "/exit") break;
      if (turn->find_first_not_of(" \t") == std::string::npos) continue;
      if (*turn == "/help") {
        PrintNoteText(kHelp);
        continue;
      }
      if (*turn == "/reset") {
        Reset();
        continue;
      }
      messages_.push_back({{"role", "user"}, {"content", *turn}});
      Result<std::string> answer = Answer(interrupt);
      if (answer) {
        messages_.push_back({{"role", "assistant"}, {"content", *std::move(answer)}});
        continue;
      }
      // At a terminal the person can shorten the turn or start over.
      if (!is_interactive_ || output_failed_) return answer.error();
      messages_.erase(messages_.size() - 1);
      PrintError(answer.error().message);
    }
    return {};
  }

  void Reset() {
    messages_ = ordered_json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }

  // One line; nothing at the end of the input, or on Ctrl-C while waiting for it.
  std::optional<std::string> ReadTurn() {
    if (is_interactive_) PrintNote("> ");
    std::string line;
    if (!std::getline(std::cin, line)) {
      if (is_interactive_) PrintNote("\n");
      return std::nullopt;
    }
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }

  // Lets the model continue the conversation; streams and returns what it says. Ctrl-C ends the
  // answer where it is, and it stays in the conversation like that.
  Result<std::string> Answer(InterruptWatch& interrupt) {
    Result<engine::Request> request = MakeRequest();
    if (!request) return request.error();
    const auto start = std::chrono::steady_clock::now();
    const size_t num_prompt_tokens = request->prompt.size();
    const int64_t reused_before = engine_->num_reused_tokens();
    const Result<engine::RequestId> id = engine_->Submit(*std::move(request));
    if (!id) return id.error();
    std::string answer;
    int64_t num_generated = 0;
    while (engine_->num_requests() > 0) {
      for (const engine::Update& update : engine_->Step()) {
        if (update.error) return *update.error;
        ++num_generated;
        answer += update.text;
        if (const Status shown = Show(update.text); !shown) return shown.error();
      }
      if (interrupt.pressed()) engine_->Cancel(*id);
    }
    interrupt.Clear();
    if (const Status shown = Show("\n"); !shown) return shown.error();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    PrintNote("[{} tokens after a prompt of {}, {} of them reused; {:.1f} s]\n", num_generated,
              num_prompt_tokens, engine_->num_reused_tokens() - reused_before, elapsed.count());
    return answer;
  }

  Result<engine::Request> MakeRequest() const {
    text::RenderOptions options;
    options.add_generation_prompt = true;
    const Result<std::string> text = chat_template_->Render(messages_, options);
    if (!text) return text.error();
    // The template has written the special tokens itself.
    Result<std::vector<int32_t>> tokens =
        engine_->tokenizer().Encode(*text, {.add_special_tokens = false});
    if (!tokens) return tokens.error();
    engine::Request request =
        RequestOf(sampling_, engine_->model().generation_config(), std::nullopt);
    request.prompt = *std::move(tokens);
    return request;
  }

  Status Show(std::string_view text) {
    Status shown = WriteOutput(text);
    if (shown) shown = FlushOutput();
    output_failed_ = !shown;
    return shown;
  }

  ModelOptions model_options_;
  SamplingFlags sampling_;
  std::string system_;

  engine::Engine* engine_ = nullptr;
  const text::ChatTemplate* chat_template_ = nullptr;
  ordered_json messages_;
  bool is_interactive_ = false;
  bool output_failed_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeChat() { return std::make_unique<Chat>(); }

}  // namespace convene::cli
