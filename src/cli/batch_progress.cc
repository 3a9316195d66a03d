#include "cli/batch_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace convene::cli {
namespace {

constexpr auto kLogInterval = std::chrono::minutes(1);

// "45 s", "2 min 10 s", "3 h 20 min".
std::string DescribeDuration(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string CountOf(double count) {
  return FormatCount(static_cast<uint64_t>(std::llround(count)));
}

// Of what is left at the rate of what is done; below 0: none was seen.
double SecondsFor(double left, int64_t done, double done_s) {
  if (left <= 0) return 0;
  return done > 0 ? left * done_s / static_cast<double>(done) : -1;
}

}  // namespace

void BatchCounts::Begin(const RequestProgress& request) {
  --num_waiting_;
  begun_prompt_tokens_ += request.prompt_tokens;
  open_most_tokens_ += request.most_tokens;
}

void BatchCounts::Compute(RequestProgress& request, int64_t num_computed) {
  // What had to give way is computed again with what it has generated.
  const int64_t of_prompt = std::min(num_computed, request.prompt_tokens);
  const int64_t more = std::max<int64_t>(0, of_prompt - request.num_computed);
  request.num_computed += more;
  computed_tokens_ += more;
  step_computed_ += more;
}

void BatchCounts::Generate(RequestProgress& request) {
  Compute(request, request.prompt_tokens);
  ++request.num_generated;
  ++generated_tokens_;
  ++open_generated_tokens_;
  ++step_generated_;
}

void BatchCounts::End(const RequestProgress& request) {
  ++num_done_;
  open_most_tokens_ -= request.most_tokens;
  open_generated_tokens_ -= request.num_generated;
  // One that was refused on its way leaves the rest of its prompt undone, and says nothing of how
  // long answers are.
  begun_prompt_tokens_ -= request.prompt_tokens - request.num_computed;
  if (request.num_generated > 0) ended_most_tokens_ += request.most_tokens;
}

void BatchCounts::EndUnbegun(bool was_waiting) {
  ++num_done_;
  if (was_waiting) --num_waiting_;
}

void BatchCounts::AddStep(double seconds) {
  elapsed_s_ += seconds;
  const auto tokens = static_cast<double>(step_computed_ + step_generated_);
  if (tokens > 0) {
    prompt_s_ += seconds * static_cast<double>(step_computed_) / tokens;
    generated_s_ += seconds * static_cast<double>(step_generated_) / tokens;
  }
  step_computed_ = 0;
  step_generated_ = 0;
}

double BatchCounts::all_prompt_tokens() const {
  return static_cast<double>(begun_prompt_tokens_) +
         static_cast<double>(num_waiting_) * usual_prompt_tokens_;
}

double BatchCounts::all_generated_tokens() const {
  const auto ended = static_cast<double>(generated_tokens_ - open_generated_tokens_);
  const double share = ended_most_tokens_ > 0 ? ended / static_cast<double>(ended_most_tokens_) : 1;
  const double most = static_cast<double>(open_most_tokens_) +
                      static_cast<double>(num_waiting_) * usual_answer_tokens_;
  return ended + std::max(static_cast<double>(open_generated_tokens_), share * most);
}

double BatchCounts::prompt_seconds_left() const {
  return SecondsFor(all_prompt_tokens() - static_cast<double>(computed_tokens_), computed_tokens_,
                    prompt_s_);
}

double BatchCounts::seconds_left() const {
  const double prompts_s = prompt_seconds_left();
  const double answers_s =
      SecondsFor(all_generated_tokens() - static_cast<double>(generated_tokens_), generated_tokens_,
                 generated_s_);
  return prompts_s < 0 || answers_s < 0 ? -1 : prompts_s + answers_s;
}

std::string BatchCounts::Describe() const {
  std::string line =
      fmt::format("batch: {} of {} requests done", FormatCount(static_cast<uint64_t>(num_done_)),
                  FormatCount(static_cast<uint64_t>(num_requests_)));
  const double all_prompts = all_prompt_tokens();
  if (num_done_ == 0 && static_cast<double>(computed_tokens_) < all_prompts) {
    line += fmt::format(", prompts: {} of {} tokens",
                        FormatCount(static_cast<uint64_t>(computed_tokens_)), CountOf(all_prompts));
  }
  if (generated_tokens_ == 0) {
    const double prompts_s = prompt_seconds_left();
    if (prompts_s > 0) line += fmt::format(", {} left for them", DescribeDuration(prompts_s));
    return line;
  }
  line += fmt::format(", {:.1f} tokens/s",
                      static_cast<double>(generated_tokens_) / std::max(elapsed_s_, 1e-9));
  const double left_s = seconds_left();
  return left_s < 0 ? line : line + fmt::format(", {} left", DescribeDuration(left_s));
}

BatchProgress::BatchProgress(const BatchCounts& counts) : counts_(counts), line_(kLogInterval) {}

void BatchProgress::Update() {
  const auto now = ProgressLine::Clock::now();
  counts_.AddStep(std::chrono::duration<double>(now - last_step_).count());
  last_step_ = now;
  if (line_.IsDue()) line_.Show(counts_.Describe());
}

}  // namespace convene::cli
