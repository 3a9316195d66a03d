#include "cli/chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/environment.h"
#include "base/message.h"
#include "base/units.h"
#include "cli/output.h"

namespace convene::cli {
namespace {

using nlohmann::ordered_json;

constexpr int kRoomForAnswer = 512;  // tokens, in the --context that is advised

text::RenderOptions RenderOptions() {
  text::RenderOptions options;
  options.add_generation_prompt = true;
  return options;
}

ordered_json Message(std::string_view role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

}  // namespace

ChatSession::ChatSession(engine::Engine& engine, const text::ChatTemplate& chat_template,
                         const SamplingFlags& sampling, InterruptWatch& interrupt)
    : engine_(engine), chat_template_(chat_template), sampling_(sampling), interrupt_(interrupt) {}

ordered_json ChatSession::WithSystem(const std::string& system) const {
  ordered_json messages = ordered_json::array();
  if (!system.empty()) messages.push_back(Message("system", system));
  for (const ordered_json& turn : turns_) messages.push_back(turn);
  return messages;
}

Status ChatSession::SetSystem(const std::string& text) {
  ordered_json messages = WithSystem(text);
  if (turns_.empty()) messages.push_back(Message("user", "Hello"));
  const Result<std::string> rendered = chat_template_.Render(messages, RenderOptions());
  if (!rendered) return rendered.error();
  system_ = text;
  return {};
}

void ChatSession::Reset() { turns_ = ordered_json::array(); }

Status ChatSession::Say(const std::string& turn) {
  const uint64_t regenerated_before = std::exchange(num_regenerated_, 0);
  turns_.push_back(Message("user", turn));
  const size_t num_turns = turns_.size();
  const Status answered = Answer();
  if (turns_.size() == num_turns) {
    turns_.erase(num_turns - 1);
    num_regenerated_ = regenerated_before;
  }
  return answered;
}

Status ChatSession::Regenerate() {
  if (turns_.empty()) return Error{"there is no turn yet to answer again"};
  const ordered_json answer = turns_.back();
  turns_.erase(turns_.size() - 1);
  const size_t num_turns = turns_.size();
  ++num_regenerated_;
  const Status answered = Answer();
  if (turns_.size() > num_turns) return answered;
  turns_.push_back(answer);
  --num_regenerated_;
  return answered;
}

// Adds the answer to the turns, unless there is none.
Status ChatSession::Answer() {
  Result<engine::Request> request = MakeRequest();
  if (!request) return request.error();
  if (num_regenerated_ > 0 && request->sampling.temperature == 0) {
    PrintNote("the model is not sampled (temperature 0), so a whole answer is the same again\n");
  }
  Result<std::optional<std::string>> answer = Generate(*std::move(request));
  if (!answer) return answer.error();
  if (*answer) {
    turns_.push_back(Message("assistant", **answer));
  } else {
    PrintNote("nothing was answered yet, and the conversation is as before\n");
  }
  return {};
}

Result<engine::Request> ChatSession::MakeRequest() const {
  const Result<std::string> text = chat_template_.Render(WithSystem(system_), RenderOptions());
  if (!text) return text.error();
  // The template has written the special tokens itself.
  Result<std::vector<int32_t>> tokens =
      engine_.tokenizer().Encode(*text, {.add_special_tokens = false});
  if (!tokens) return tokens.error();
  const engine::LoadedModel& model = engine_.model();
  if (!model.spec().has_encoder() && std::ssize(*tokens) >= model.context()) {
    return ExplainFullContext(tokens->size());
  }
  engine::Request request = RequestOf(sampling_, model.generation_config(), std::nullopt);
  request.prompt = *std::move(tokens);
  request.sampling.seed += num_regenerated_;
  return request;
}

Error ChatSession::ExplainFullContext(size_t num_tokens) const {
  const engine::LoadedModel& model = engine_.model();
  const int64_t limit = model.spec().max_positions;
  const int64_t advised =
      std::min<int64_t>(limit, static_cast<int64_t>(std::bit_ceil(num_tokens + kRoomForAnswer)));
  const std::string remedy =
      advised > static_cast<int64_t>(num_tokens)
          ? fmt::format("start with --context {} (the model's limit is {})", advised, limit)
          : fmt::format("the model itself takes no more than {}", limit);
  return Error{fmt::format(
      "the conversation would have {} tokens with this turn, and the context of {} must hold them "
      "and an answer: /reset forgets the turns before, a shorter turn may fit, or {}",
      FormatCount(num_tokens), model.context(), remedy)};
}

// The text of the answer; none if Ctrl-C came before its first word.
Result<std::optional<std::string>> ChatSession::Generate(engine::Request request) {
  const auto start = std::chrono::steady_clock::now();
  const size_t num_prompt_tokens = request.prompt.size();
  const int64_t reused_before = engine_.num_reused_tokens();
  const Result<engine::RequestId> id = engine_.Submit(std::move(request));
  if (!id) return id.error();
  interrupt_.Clear();
  std::string answer;
  int64_t num_generated = 0;
  bool is_at_limit = false;
  while (engine_.num_requests() > 0) {
    for (const engine::Update& update : engine_.Step()) {
      if (update.error) {
        const Status ended = Show("\n");
        return ended ? *update.error : ended.error();
      }
      ++num_generated;
      answer += update.text;
      is_at_limit = update.finish == engine::FinishReason::kLength;
      if (const Status shown = Show(update.text); !shown) return shown.error();
    }
    if (interrupt_.pressed()) engine_.Cancel(*id);
  }
  const bool was_interrupted = interrupt_.pressed();
  interrupt_.Clear();
  if (const Status shown = Show("\n"); !shown) return shown.error();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  PrintNote("[{} tokens after a prompt of {}, {} of them reused; {:.1f} s{}]\n", num_generated,
            num_prompt_tokens, engine_.num_reused_tokens() - reused_before, elapsed.count(),
            was_interrupted ? "; ended by Ctrl-C" : "");
  const int context = engine_.model().context();
  if (is_at_limit && static_cast<int64_t>(num_prompt_tokens) + num_generated >= context) {
    const int64_t limit = engine_.model().spec().max_positions;
    PrintNote(
        "the answer ends here because the context of {} tokens is full: /save keeps the "
        "conversation, /reset starts over, and {}\n",
        context,
        context < limit ? fmt::format("a larger --context (at most {}) holds more", limit)
                        : "the model itself takes no more");
  }
  if (was_interrupted && num_generated == 0) return std::optional<std::string>();
  return std::optional(std::move(answer));
}

Status ChatSession::Save(std::string path) {
  if (turns_.empty()) return Error{"nothing was said yet that could be saved"};
  const auto home = EnvironmentVariable("HOME");
  if (path.starts_with("~/") && home) path = *home + path.substr(1);
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !saved_paths_.contains(path)) {
    return Error{fmt::format("{} is there already and would be lost; give another name", path)};
  }
  const Status written = WriteJson(path, {{"messages", WithSystem(system_)}});
  if (!written) return written;
  if (path == "-") return FlushOutput();
  saved_paths_.insert(path);
  PrintNote("{} messages saved in {}\n", turns_.size(), path);
  return {};
}

Status ChatSession::Show(std::string_view text) {
  const Status shown = ShowOutput(text);
  output_failed_ = !shown;
  return shown;
}

}  // namespace convene::cli
