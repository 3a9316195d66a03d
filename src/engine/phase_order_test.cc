#include "engine/phase_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace convene::engine {
namespace {

// A scheduler whose sequences end after so many tokens, and what its steps were: "p" one of
// prompts, "d" one of generated tokens, "m" one of both; capitals where the experts are those of
// decode.
class Stream {
 public:
  Stream(const plan::PhaseChange& change, Arrivals arrivals, int max_sequences = 2)
      : blocks_(64),
        scheduler_(blocks_, {.max_step_tokens = 16, .max_sequences = max_sequences}),
        order_(change, arrivals) {}

  void Add(int prompt_length, int num_generated) {
    auto& sequence = sequences_.emplace_back(std::make_unique<Sequence>());
    sequence->tokens.resize(static_cast<size_t>(prompt_length));
    std::iota(sequence->tokens.begin(), sequence->tokens.end(),
              static_cast<int32_t>(1000 * sequences_.size()));
    sequence->prompt_length = prompt_length;
    sequence->sharing_limit = prompt_length;
    most_.push_back(prompt_length + num_generated);
    scheduler_.Add(sequence.get());
  }

  std::string Run(int most_steps = 1000) {
    std::string steps;
    for (int i = 0; i < most_steps && scheduler_.num_sequences() > 0; ++i) {
      const PhaseOrder::Step step = order_.Next(scheduler_);
      if (step.tokens.empty()) return steps + "!";
      bool has_prompt = false;
      bool has_generated = false;
      for (const ScheduledTokens& tokens : step.tokens) {
        const Sequence& sequence = *tokens.sequence;
        (sequence.num_computed < sequence.prompt_length ? has_prompt : has_generated) = true;
        EXPECT_TRUE(sequence.num_computed >= sequence.prompt_length ||
                    sequence.num_computed + tokens.num_tokens <= sequence.prompt_length);
      }
      const bool in_decode = step.phase == strategy::Phase::kDecode;
      EXPECT_FALSE(step.decode_follows && in_decode);
      follows_ += step.decode_follows ? '>' : '-';
      const char name = has_prompt && has_generated ? 'm' : has_prompt ? 'p' : 'd';
      steps += in_decode ? static_cast<char>(std::toupper(name)) : name;
      scheduler_.Complete(step.tokens);
      for (const ScheduledTokens& tokens : step.tokens) {
        if (tokens.sequence->num_pending() == 0) tokens.sequence->tokens.push_back(7);
      }
      for (size_t s = 0; s < sequences_.size(); ++s) {
        if (sequences_[s] == nullptr || sequences_[s]->length() < most_[s]) continue;
        scheduler_.Remove(sequences_[s].get());
        sequences_[s].reset();
      }
    }
    return steps;
  }

  // Of each step: '>' where it was said that decode follows.
  const std::string& follows() const { return follows_; }

 private:
  std::string follows_;
  BlockManager blocks_;
  Scheduler scheduler_;
  PhaseOrder order_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<int> most_;
};

TEST(PhaseOrder, OfRequestsThatAreThereHasAllPromptsFirst) {
  Stream stream({}, Arrivals::kAtOnce);
  stream.Add(20, 3);
  stream.Add(30, 5);
  EXPECT_EQ(stream.Run(), "ppppDDDD");
  EXPECT_EQ(stream.follows(), "--->----");
}

TEST(PhaseOrder, SaysNothingOfDecodeWhereItsDivisionIsNotUsed) {
  Stream stream({}, Arrivals::kStream);
  stream.Add(20, 3);
  stream.Run();
  EXPECT_EQ(stream.follows().find('>'), std::string::npos);
  Stream epochs({.epoch_steps = 2}, Arrivals::kStream, /*max_sequences=*/4);
  epochs.Add(4, 5);
  epochs.Add(4, 5);
  EXPECT_EQ(epochs.Run(), "pDDDD");
  EXPECT_EQ(epochs.follows(), ">----");
}

TEST(PhaseOrder, OfMoreThanFitTakesThemInTurns) {
  Stream stream({}, Arrivals::kAtOnce);
  stream.Add(10, 2);
  stream.Add(6, 4);
  stream.Add(10, 2);
  EXPECT_EQ(stream.Run(), "pDDDpD");
  EXPECT_EQ(stream.follows(), ">--->-");  // though the third waits: it has no place yet
}

TEST(PhaseOrder, WithoutEpochsStaysInPrefill) {
  Stream stream({.epoch_steps = 0}, Arrivals::kStream);
  stream.Add(10, 3);
  stream.Add(30, 3);
  EXPECT_THAT(stream.Run(), ::testing::Not(::testing::HasSubstr("D")));
}

TEST(PhaseOrder, LetsPromptsWaitForTheEndOfAnEpoch) {
  Stream stream({.epoch_steps = 4}, Arrivals::kStream);
  stream.Add(10, 20);
  EXPECT_EQ(stream.Run(3), "pDD");
  stream.Add(10, 3);
  // After four steps its turn; once it generates, the next epoch begins.
  EXPECT_EQ(stream.Run(6), "DDpDDD");
}

TEST(PhaseOrder, GoesOnInDecodeWhereNobodyWaits) {
  Stream stream({.epoch_steps = 2}, Arrivals::kStream);
  stream.Add(4, 8);
  EXPECT_EQ(stream.Run(), "pDDDDDDD");
}

TEST(PhaseOrder, GoesOnInDecodeWhereThereIsNoRoomForWhoWaits) {
  Stream stream({.epoch_steps = 2}, Arrivals::kStream, /*max_sequences=*/1);
  stream.Add(4, 6);
  stream.Add(4, 3);
  EXPECT_EQ(stream.Run(), "pDDDDDpDD");
}

TEST(PhaseOrder, LetsPromptsJoinAnEpoch) {
  Stream stream({.epoch_steps = 4, .prompts_join = true}, Arrivals::kStream);
  stream.Add(10, 20);
  EXPECT_EQ(stream.Run(2), "pD");
  stream.Add(30, 3);
  EXPECT_EQ(stream.Run(3), "MMD");
  // It ended with nobody's prompt to be computed; a later one has its own phase once.
  EXPECT_EQ(stream.Run(4), "DDDD");
  stream.Add(30, 2);
  EXPECT_EQ(stream.Run(3), "mmD");
}

TEST(PhaseOrder, IsEmptyWithoutSequences) {
  Stream stream({.epoch_steps = 1}, Arrivals::kStream);
  EXPECT_EQ(stream.Run(), "");
}

}  // namespace
}  // namespace convene::engine
