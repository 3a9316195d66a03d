// The bodies of requests as work for the engine: parsed, rendered by the chat template, tokenized
// and checked, all that takes long for a large body and needs no step of the model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "openai/answer_forms.h"
#include "openai/api_error.h"
#include "openai/generation_body.h"
#include "server/http.h"
#include "server/replanner.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace convene::server {

// What requests need to know of the model that answers them. Threads read it at the same time, but
// for fingerprint and plan_json, which another plan changes: they are the HTTP thread's.
struct ServedModel {
  std::string name;
  const text::Tokenizer* tokenizer = nullptr;  // outlives the server
  Result<text::ChatTemplate> chat_template;    // an error: requests that chat get it
  engine::SamplingOptions defaults = {};       // of what a request does not say
  std::optional<int> max_new_tokens = {};      // of a chat that does not say how many
  int context = 0;
  int max_sequences = 1;         // choices that run at the same time
  int64_t created = 0;           // when it was loaded, in seconds since 1970
  std::string fingerprint = {};  // system_fingerprint: the same answers come from the same one
  std::string plan_json = "{}";  // what /v1/plan answers; its id is the fingerprint's last part
  // Set: asked for another plan where an epoch's requests differ much from `planned_for`.
  FindPlan find_plan = {};
  LoadShape planned_for = {};
  bool watches_steps = false;  // Server::SeeStep is called after each
  std::string weights = {};    // their format, and the threads of a rank: whose steps they are
  int num_threads = 0;
  bool int8_kv = false;                                      // keys and values are cached in int8
  std::function<Status(const engine::Request&)> check = {};  // as engine::Engine::Check
  std::unique_ptr<openai::AnswerForms> forms = nullptr;      // of the template and the tokenizer
};

struct PreparedRequest {
  openai::GenerationBody body;           // without messages and prompts
  openai::AnswerReading reading;         // how the answer to a chat is to be read
  std::vector<engine::Request> choices;  // to each prompt body.num_answers
  std::vector<size_t> prompt_sizes;      // of each choice
  std::string prompt_text;               // as JSON; where `keeps_prompt`
  int64_t priority = 0;
};

// The error where a request names another model; it need not name one.
std::optional<openai::ApiError> CheckModelName(const ServedModel& model, const std::string& name);

// Which of the paths for text a body came to.
enum class Api : uint8_t { kChat, kCompletions, kResponses };

// The most log probabilities of an answer that is not streamed: of each token that it may have one,
// and as many as are asked for besides. Its body is held as a whole, about 60 bytes for each.
inline constexpr int64_t kMaxLogprobs = int64_t{1} << 20;

// `seed`: of a request that names none. Further answers to a prompt have the seeds behind it.
std::variant<PreparedRequest, openai::ApiError> PrepareGeneration(const ServedModel& model,
                                                                  std::string_view body, Api api,
                                                                  uint64_t seed, bool keeps_prompt);

// /tokenize and /detokenize.
Response AnswerTokenRequest(const ServedModel& model, std::string_view body, bool is_tokenize);

}  // namespace convene::server
