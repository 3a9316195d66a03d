// How a model writes what is not plain text in its answers to chats: what it thinks, and calls of
// tools. It is data; answer_parser.h reads answers by it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "openai/call_parameters.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace convene::openai {

enum class CallForm : uint8_t {
  kNone,
  // call_begin {"name": "f", "arguments": {...}} call_end, one after the other. Hermes, Qwen.
  kObjects,
  // section_begin [{"name": "f", "arguments": {...}}, ...]. Mistral, Mixtral; Granite.
  kArray,
  // section_begin (call_begin NAME separator ARGUMENTS call_end)... section_end. DeepSeek, whose
  // third version writes function separator NAME and the arguments between fences; Kimi, whose
  // names are functions.NAME:NUMBER.
  kNamed,
  // call_begin NAME (key_begin KEY key_end VALUE value_end)... call_end, where a value is text, or
  // JSON of another type. Qwen3-Coder, whose NAME is <function=NAME>; GLM.
  kParameters,
  // Channels of gpt-oss (https://cookbook.openai.com/articles/openai-harmony): analysis is
  // reasoning, final is content, a message to functions.NAME is a call.
  kChannels,
};

struct AnswerSyntax {
  CallForm calls = CallForm::kNone;
  std::string section_begin = {};
  std::string section_end = {};
  std::string call_begin = {};
  std::string separator = {};
  std::string call_end = {};
  // Of kNamed: DeepSeek's third version, and Kimi.
  bool has_fences = false;
  bool has_numbers = false;
  // Of kParameters. What is around a name and before a value may be empty.
  std::string name_begin = {};
  std::string name_end = {};
  std::string function_end = {};  // before the end of the call; read over
  std::string key_begin = {};
  std::string key_end = {};
  std::string value_begin = {};
  std::string value_end = {};
  // Around what the model thinks; empty: it is not told apart.
  std::string think_begin = {};
  std::string think_end = {};

  bool thinks() const { return !think_end.empty(); }
  // All texts that stand for something else than text.
  std::vector<std::string> Markers() const;
};

// By the words of the model's chat template, and by the tokens that it has.
AnswerSyntax SyntaxOf(const text::ChatTemplate& chat_template, const text::Tokenizer& tokenizer);

// How an answer is to be read: by the syntax, of which a request may want a part.
struct AnswerReading {
  AnswerSyntax syntax = {};
  // Of kParameters, by function and name of the parameter; of others nothing is known.
  std::map<std::pair<std::string, std::string>, JsonTypes> parameter_types = {};
  bool begins_in_reasoning = false;  // the prompt has ended with the beginning of reasoning
};

// Whether a prompt that ends in `tail` has begun what the model thinks.
bool BeginsReasoning(const AnswerSyntax& syntax, std::string_view tail);

}  // namespace convene::openai
