// Rows that are rounded on their way between ranks: greedy tokens are those of one rank wherever it
// is sure of them, that is wherever its margin exceeds what the roundings may do.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>

#include "tests/golden_ranks.h"

namespace convene {
namespace {

using comm::WireFormat;
using kernels::WeightFormat;

// What a wire may do to a position's logits, relative to their norm, as Bf16Bound: errors of the
// layers are independent and add as squares; four standard deviations. A layer's rows travel three
// times at most: partial sums of attention (bf16), dispatched rows (the wire's format) and returned
// sums (bf16, or E4M3 too). A rounding's error is even over its range: its standard deviation is 1
// / sqrt(3) of the largest one, 2^-9 in bf16 and 2^-4 in E4M3 (the scale of a row makes overflow
// impossible, and what it makes subnormal is less than 2^-14 of the row's largest number).
double WireBound(const DividedOptions& divided, int num_layers) {
  const double bf16 = std::ldexp(1.0, -9) / std::sqrt(3.0);
  const double e4m3 = std::ldexp(1.0, -4) / std::sqrt(3.0);
  const double dispatched = divided.wire == WireFormat::kE4m3 ? e4m3 : bf16;
  const double returned = divided.returns_fp8 ? e4m3 : bf16;
  return 4 * std::sqrt(num_layers * (bf16 * bf16 + dispatched * dispatched + returned * returned));
}

// Where activations are bf16, a small error of a row may turn any of their roundings: both runs are
// then Bf16Bound from what is true, independently.
double Bound(const DividedOptions& divided, int num_layers) {
  const double wire = WireBound(divided, num_layers);
  if (divided.formats.activations == kernels::ActivationFormat::kF32) return wire;
  return std::hypot(wire, std::sqrt(2.0) * Bf16Bound(num_layers));
}

// Of the router, by position: its smallest margin over the layers.
using Margins = std::vector<float>;

// What errors of `bound` in all rows do to each position. Where a router's margin is within the
// bound another expert may be chosen, and that row is a different one; it has an n-th part in what
// n keys give to another position in the layers that follow, independently of others.
std::vector<double> BoundsByPosition(const model::ModelSpec& spec, const Margins& margins,
                                     double bound) {
  std::vector<int> unsure_before = {0};
  for (const float margin : margins)
    unsure_before.push_back(unsure_before.back() + (margin <= bound));
  std::vector<double> bounds;
  for (int position = 0; position < std::ssize(margins); ++position) {
    double squares = 0;
    for (size_t layer = 1; layer < spec.layers.size(); ++layer) {
      const int window = spec.layers[layer].attention.window;
      const int keys = window > 0 ? std::min(window, position + 1) : position + 1;
      const int unsure = unsure_before[position] - unsure_before[position + 1 - keys];
      squares += static_cast<double>(unsure) / keys / keys;
    }
    bounds.push_back(std::sqrt(bound * bound + 16 * squares));
  }
  return bounds;
}

// Whether errors of `bound` leave the best token the best. A difference of two logits has twice the
// error of one, at most, and each has its part of the norm's.
bool IsSure(std::span<const float> logits, double bound) {
  const auto best = static_cast<size_t>(BestToken(logits));
  float second = -INFINITY;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i != best) second = std::max(second, logits[i]);
  }
  const double scale = NormOf(logits) / std::sqrt(static_cast<double>(logits.size()));
  return logits[best] - second > 2 * bound * scale;
}

class GoldenRanksWire : public testing::TestWithParam<std::filesystem::path> {
 protected:
  void SetUp() override {
    auto checkpoint = checkpoint::Checkpoint::Open(GetParam().string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    checkpoint_ = std::make_unique<checkpoint::Checkpoint>(std::move(*checkpoint));
    for (const std::string name : {"prompt_300", "prompt_17", "prompt_1"}) {
      work_.prompts.push_back(ReadNpy<int32_t>(GetParam() / (name + ".tokens.npy")));
      margins_.push_back(ReadNpy<float>(GetParam() / (name + ".router_margin.npy")));
      // The first one is that of the prompt's last position.
      const auto greedy = ReadNpy<float>(GetParam() / (name + ".greedy_router_margin.npy"));
      margins_.back().insert(margins_.back().end(), greedy.begin() + 1, greedy.end());
    }
  }

  // Compares the tokens that one rank is sure of, and returns how many those are.
  int CompareSureTokens(const Answers& divided, const Answers& one, double bound) const {
    int num_compared = 0;
    for (size_t i = 0; i < work_.prompts.size(); ++i) {
      const auto bounds = BoundsByPosition(checkpoint_->spec(), margins_[i], bound);
      const auto length = work_.prompts[i].size();
      const size_t vocab = one.prompt_logits[i].size() / length;
      const auto is_sure = [&](size_t position) {
        const auto& all = position < length ? one.prompt_logits[i] : one.answer_logits[i];
        const size_t row = position < length ? position : position - length;
        return margins_[i][position] > bounds[position] &&
               IsSure(std::span(all).subspan(row * vocab, vocab), bounds[position]);
      };
      const auto token_at = [&](const Answers& answers, size_t position) {
        return BestToken(std::span(answers.prompt_logits[i]).subspan(position * vocab, vocab));
      };
      for (size_t position = 0; position < length; ++position) {
        if (!is_sure(position)) continue;
        ++num_compared;
        EXPECT_EQ(token_at(divided, position), token_at(one, position)) << "position " << position;
      }
      // From the first one on that is not sure answers may differ.
      for (size_t token = 0; token < one.tokens[i].size() && is_sure(length - 1 + token); ++token) {
        ++num_compared;
        EXPECT_EQ(divided.tokens[i][token], one.tokens[i][token]) << "token " << token;
      }
    }
    return num_compared;
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  Work work_;
  std::vector<Margins> margins_;  // by prompt
};

TEST_P(GoldenRanksWire, SureTokensAreThoseOfOneRank) {
  const int num_layers = checkpoint_->spec().num_layers();
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    DividedOptions divided{.formats = runtime::DefaultFormats(format)};
    const Answers one = RunPrompts(*checkpoint_, divided, work_);
    struct Case {
      WireFormat wire;
      bool returns_fp8;
      int fewest_sure;
    };
    for (const auto& [wire, returns_fp8, fewest_sure] :
         {Case{WireFormat::kBf16, false, 200}, Case{WireFormat::kE4m3, false, 5},
          Case{WireFormat::kE4m3, true, 1}}) {
      divided.wire = wire;
      divided.returns_fp8 = returns_fp8;
      const double bound = Bound(divided, num_layers);
      for (const Division& division : Divisions()) {
        // One of each kind.
        const int num_ranks = division.layout.num_ranks();
        if (num_ranks == 3 || !division.pipeline.overlap) continue;
        if (num_ranks == 2 && division.pipeline.chunks > 1) continue;
        if (returns_fp8 && num_ranks > 2) continue;
        divided.division = division;
        if (!Fits(*checkpoint_, divided)) continue;
        SCOPED_TRACE(
            fmt::format("{} {} {} {}", Name(format), Name(wire), returns_fp8, division.name));
        const int compared =
            CompareSureTokens(RunPrompts(*checkpoint_, divided, work_), one, bound);
        EXPECT_GE(compared, fewest_sure);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fixture, GoldenRanksWire,
    testing::ValuesIn(FixturesNamed({"dbrx_plain", "deepseek_v2_groups", "deepseek_v3_plain",
                                     "gpt_oss_plain", "granitemoe_plain", "mixtral_window",
                                     "olmoe_plain", "qwen2_dynamic", "qwen3_plain"})),
    [](const auto& fixture) { return fixture.param.filename().string(); });

}  // namespace
}  // namespace convene
