// How long the requests of a batch are, in tokens: what is known of them before a model is loaded.
// What follows for plan and memory is not here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "cli/batch_input.h"
#include "openai/batch_line.h"
#include "planner/requests.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace convene::cli {

// What lines are read with besides a tokenizer.
struct LineReader {
  Result<text::ChatTemplate> chat_template = Error{"not loaded yet"};  // lines that chat need one
  std::optional<int> max_new_tokens = {};  // of a chat whose line does not say how many

  // A line has one prompt.
  Result<std::vector<int32_t>> PromptOf(const openai::BatchLine& line,
                                        const text::Tokenizer& tokenizer) const;
  // Of an answer, as the server and `run` have it: as many as the line says, or the model's
  // authors.
  std::optional<int> MaxTokens(const openai::BatchLine& line) const {
    const std::optional<int>& said = line.body.request.max_tokens;
    return said ? said : max_new_tokens;
  }
};

// Of lines that will not be refused. Their prompts have `padded_length` tokens at least.
class BatchLengths {
 public:
  // Keeps references.
  BatchLengths(std::span<const InputLine> lines, const LineReader& reader,
               const text::Tokenizer& tokenizer)
      : lines_(lines), reader_(reader), tokenizer_(tokenizer) {}

  // The longest prompt that has room in the context; 0: there is none.
  int LongestPrompt(int context) const;
  // The longest request with its answer; at most the context. 0: one of them does not say how long
  // its answer may be, or there are too many to look at each.
  int LongestRequest(int context, int padded_length) const;
  // Of some from all over the input. Answers are taken to be as long as they may be, since nobody
  // knows when they end; those of chats that do not say, as long as the others, and where none
  // says, `usual_tokens`.
  std::vector<planner::RequestLengths> Some(int context, int padded_length, int usual_tokens) const;

 private:
  struct Lengths {
    int64_t prompt_tokens = 0;
    std::optional<int> max_tokens;
  };
  // Nothing: the line will be refused.
  std::optional<Lengths> LengthsOf(const InputLine& line) const;

  std::span<const InputLine> lines_;
  const LineReader& reader_;
  const text::Tokenizer& tokenizer_;
};

}  // namespace convene::cli
