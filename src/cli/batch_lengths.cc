#include "cli/batch_lengths.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "openai/prompt_tokens.h"

namespace convene::cli {

Result<std::vector<int32_t>> LineReader::PromptOf(const openai::BatchLine& line,
                                                  const text::Tokenizer& tokenizer) const {
  auto prompts = openai::PromptTokens(line.body, tokenizer, chat_template);
  if (const auto* wrong = std::get_if<openai::FieldError>(&prompts)) return wrong->error;
  return std::move(std::get<0>(prompts).front());
}

std::optional<BatchLengths::Lengths> BatchLengths::LengthsOf(const InputLine& line) const {
  const Result<openai::BatchLine> parsed = openai::ParseBatchLine(line.text, {});
  if (!parsed) return std::nullopt;
  const Result<std::vector<int32_t>> prompt = reader_.PromptOf(*parsed, tokenizer_);
  if (!prompt) return std::nullopt;
  return Lengths{.prompt_tokens = std::ssize(*prompt), .max_tokens = reader_.MaxTokens(*parsed)};
}

int BatchLengths::LongestPrompt(int context) const {
  int64_t longest = 0;
  for (const InputLine& line : lines_) {
    const std::optional<Lengths> lengths = LengthsOf(line);
    if (!lengths || lengths->prompt_tokens >= context) continue;
    longest = std::max(longest, lengths->prompt_tokens);
  }
  return static_cast<int>(longest);
}

int BatchLengths::LongestRequest(int context, int padded_length) const {
  constexpr size_t kMostRead = 20'000;
  if (lines_.size() > kMostRead) return 0;
  int64_t longest = 0;
  for (const InputLine& line : lines_) {
    const std::optional<Lengths> lengths = LengthsOf(line);
    if (!lengths) continue;
    if (!lengths->max_tokens) return 0;
    const int64_t prompt_tokens = std::max<int64_t>(lengths->prompt_tokens, padded_length);
    longest = std::max(longest, std::min<int64_t>(prompt_tokens + *lengths->max_tokens, context));
  }
  return static_cast<int>(longest);
}

std::vector<planner::RequestLengths> BatchLengths::Some(int context, int padded_length,
                                                        int usual_tokens) const {
  constexpr size_t kMostRead = 64;
  const size_t stride = (lines_.size() + kMostRead - 1) / kMostRead;
  std::vector<planner::RequestLengths> some;
  int64_t known = 0;
  int64_t num_known = 0;
  for (size_t i = 0; i < lines_.size(); i += stride) {
    const std::optional<Lengths> lengths = LengthsOf(lines_[i]);
    if (!lengths || lengths->prompt_tokens == 0 || lengths->prompt_tokens >= context) continue;
    if (lengths->max_tokens) {
      known += *lengths->max_tokens;
      ++num_known;
    }
    some.push_back(
        {.prompt_tokens = std::max(static_cast<int>(lengths->prompt_tokens), padded_length),
         .gen_tokens = lengths->max_tokens.value_or(0)});
  }
  const int64_t usual = num_known > 0 ? known / num_known : usual_tokens;
  for (planner::RequestLengths& each : some) {
    const int64_t wanted = each.gen_tokens > 0 ? each.gen_tokens : usual;
    each.gen_tokens = static_cast<int>(std::min<int64_t>(wanted, context - each.prompt_tokens));
  }
  return some;
}

}  // namespace convene::cli
