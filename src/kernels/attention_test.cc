// Attention of every kernel set against the reference, whole, in chunks and in spans. What only
// some families have is attention_variants_test.cc.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/enumerators_test.h"
#include "kernels/kernels_test.h"

namespace convene::kernels {
namespace {

class AttentionTest : public KernelsTest {};

INSTANTIATE_TEST_SUITE_P(EverySet, AttentionTest, EverySet(), NameOfSet);

struct AttentionCase {
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int length;
  int window;
  QkNorm norm;
  float clip;
};

constexpr AttentionCase kAttentionCases[] = {
    {4, 4, 24, 17, 0, QkNorm::kNone, 0},
    {8, 2, 80, 130, 0, QkNorm::kPerHead, 0},
    {6, 1, 136, 90, 33, QkNorm::kWholeProjection, 0.7f},
    {2, 1, 16, 1100, 0, QkNorm::kNone, 0},
    {2, 2, 16, 1100, 600, QkNorm::kNone, 0},
    {60, 1, 8, 70, 0, QkNorm::kNone, 0},
    // Heads that a matrix unit takes.
    {8, 2, 128, 130, 0, QkNorm::kPerHead, 0},
#ifndef CONVENE_SANITIZED  // a minute for each set of kernels, and nothing that the others have not
    {2, 1, 64, 1100, 600, QkNorm::kNone, 0},
#endif
    {3, 1, 96, 70, 0, QkNorm::kNone, 0},
};

// A whole sequence through prepare_qkv, store_kv and attend, in chunks of the given size.
class AttentionRun {
 public:
  AttentionRun(const KernelSet& kernels, KvFormat format, const AttentionCase& c)
      : kernels_(kernels),
        format_(format),
        case_(c),
        width_((c.num_heads + 2 * c.num_kv_heads) * c.head_dim) {
    const int num_blocks = (c.length + kKvBlockTokens - 1) / kKvBlockTokens;
    head_stride_ = KeyBlockBytes(format, c.head_dim) + ValueBlockBytes(format, c.head_dim);
    // Each block in memory of its own.
    cache_.resize(num_blocks);
    for (std::vector<std::byte>& block : cache_) {
      block.resize(static_cast<size_t>(head_stride_ * c.num_kv_heads) + 64);
      table_.push_back(Align(block));
    }
    scratch_.resize(AttentionScratchBytes(c.head_dim, c.head_dim) + 64);
    for (int i = 0; i < num_blocks; ++i) blocks_.push_back(num_blocks - 1 - i);
    query_norm_ = RandomFloats(size_t(c.num_heads) * c.head_dim, 11);
    key_norm_ = RandomFloats(size_t(c.num_kv_heads) * c.head_dim, 12);
  }

  // With `in_spans` each span is computed by itself and all are merged afterwards.
  std::vector<float> Run(const std::vector<float>& qkv, int chunk, bool in_spans = false) {
    const ActivationFormat compute = QueryFormat(format_);
    const int64_t element = ElementBytes(compute);
    const int64_t query_stride = PaddedHead(case_.head_dim) * element;
    const int64_t out_stride = case_.head_dim * element;
    std::vector<std::byte> queries(static_cast<size_t>(query_stride * case_.num_heads * chunk));
    std::vector<std::byte> out(static_cast<size_t>(out_stride * case_.num_heads * case_.length));
    const int group = case_.num_heads / case_.num_kv_heads;
    for (int begin = 0; begin < case_.length; begin += chunk) {
      const int count = std::min(chunk, case_.length - begin);
      for (int token = 0; token < count; ++token) {
        Prepare(qkv, begin + token, &queries[token * query_stride * case_.num_heads]);
      }
      for (int head = 0; head < case_.num_heads; ++head) {
        const int tokens_per_call = kAttentionRows;
        for (int token = 0; token < count; token += tokens_per_call) {
          Attend({.format = format_,
                  .out_format = compute,
                  .key_dim = case_.head_dim,
                  .value_dim = case_.head_dim,
                  .scale = 0.2f,
                  .window = case_.window,
                  .num_tokens = std::min(tokens_per_call, count - token),
                  .num_heads = 1,
                  .first_position = begin + token,
                  .queries = &queries[(token * case_.num_heads + head) * query_stride],
                  .query_token_stride = query_stride * case_.num_heads,
                  .query_head_stride = query_stride,
                  .kv_blocks = table_.data(),
                  .blocks = blocks_.data(),
                  .kv_offset = head / group * head_stride_,
                  .out = &out[((begin + token) * case_.num_heads + head) * out_stride],
                  .out_token_stride = out_stride * case_.num_heads,
                  .out_head_stride = out_stride,
                  .scratch = Align(scratch_)},
                 in_spans);
        }
      }
    }
    std::vector<float> result;
    for (int i = 0; i < case_.length * case_.num_heads * case_.head_dim; ++i) {
      result.push_back(reference::LoadActivation(compute, out.data(), i));
    }
    return result;
  }

 private:
  void Attend(const Attention& attention, bool in_spans) {
    if (!in_spans) return kernels_.attend(attention);
    const int span_floats =
        attention.num_tokens * attention.num_heads * SpanRowFloats(attention.value_dim);
    const int first = FirstSpan(attention);
    std::vector<float> partials(size_t(EndSpan(attention) - first) * span_floats);
    for (int span = EndSpan(attention) - 1; span >= first; --span) {
      kernels_.attend_span(attention, span, &partials[size_t(span - first) * span_floats]);
    }
    kernels_.merge_spans(attention, partials.data());
  }

  void Prepare(const std::vector<float>& qkv, int position, std::byte* queries) {
    const int half = case_.head_dim / 2;
    std::vector<float> cosine(half), sine(half);
    for (int i = 0; i < half; ++i) {
      cosine[i] = std::cos(static_cast<float>(position) / static_cast<float>(1 + i));
      sine[i] = std::sin(static_cast<float>(position) / static_cast<float>(1 + i));
    }
    std::vector<float> row(qkv.begin() + int64_t{position} * width_,
                           qkv.begin() + int64_t{position + 1} * width_);
    kernels_.prepare_qkv(
        {.format = format_,
         .num_heads = case_.num_heads,
         .num_kv_heads = case_.num_kv_heads,
         .head_dim = case_.head_dim,
         .value_dim = case_.head_dim,
         .rotary_dim = case_.head_dim,
         .norm = case_.norm,
         .epsilon = 1e-6f,
         .query_norm = query_norm_.data(),
         .key_norm = key_norm_.data(),
         .clip = case_.clip},
        {.qkv = row.data(), .cosine = cosine.data(), .sine = sine.data(), .queries = queries});
    std::byte* block = table_[blocks_[position / kKvBlockTokens]];
    const float* keys = row.data() + case_.num_heads * case_.head_dim;
    for (int head = 0; head < case_.num_kv_heads; ++head) {
      kernels_.store_kv({.format = format_,
                         .key_dim = case_.head_dim,
                         .value_dim = case_.head_dim,
                         .first_slot = position % kKvBlockTokens,
                         .num_rows = 1,
                         .keys = keys + head * case_.head_dim,
                         .values = keys + (case_.num_kv_heads + head) * case_.head_dim,
                         .block = block + head * head_stride_});
    }
  }

  const KernelSet& kernels_;
  KvFormat format_;
  AttentionCase case_;
  int width_;
  int64_t head_stride_ = 0;
  std::vector<std::vector<std::byte>> cache_;  // by block
  std::vector<std::byte*> table_;
  std::vector<std::byte> scratch_;
  std::vector<int32_t> blocks_;
  std::vector<float> query_norm_;
  std::vector<float> key_norm_;
};

TEST_P(AttentionTest, AttentionEqualsTheReferenceAndDoesNotDependOnChunks) {
  for (const KvFormat format : kEvery<KvFormat>) {
    for (const AttentionCase& c : kAttentionCases) {
      const auto describe = [&] {
        return fmt::format("{} bytes, head_dim {}", KvElementBytes(format), c.head_dim);
      };
      const auto qkv =
          RandomFloats(size_t(c.length) * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim, 21);
      const auto whole = AttentionRun(kernels(), format, c).Run(qkv, c.length);
      const auto chunked = AttentionRun(kernels(), format, c).Run(qkv, 7);
      ASSERT_EQ(whole, chunked) << describe();
      const auto in_spans = AttentionRun(kernels(), format, c).Run(qkv, 7, true);
      const bool is_reference = &kernels() == &reference::Kernels();
      const bool f32 = format == KvFormat::kF32;
      if (is_reference) {
        // The reference keeps more precision in one piece than in spans.
        for (size_t i = 0; i < whole.size(); ++i) {
          ASSERT_NEAR(in_spans[i], whole[i],
                      (f32 ? 1e-5 : 4 * kBf16Epsilon) * (1 + std::abs(whole[i])))
              << describe();
        }
        continue;
      }
      ASSERT_EQ(whole, in_spans) << describe();
      const auto expected = AttentionRun(reference::Kernels(), format, c).Run(qkv, c.length);
      // The probabilities are rounded to the format relative to another maximum, the output again.
      const double bound = f32 ? 2e-4 : 4 * kBf16Epsilon;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(whole[i], expected[i], bound * (1 + std::abs(expected[i])))
            << describe() << " at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace convene::kernels
