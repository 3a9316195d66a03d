// Attention as some families have it: values that are a part of the keys, sinks, scores by
// distance, queries that see all keys. Against a plain computation, for every instruction set and
// format.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/enumerators_test.h"
#include "kernels/choose_kernels.h"
#include "kernels/kernels_test.h"
#include "kernels/reference/kernels.h"

namespace convene::kernels {
namespace {

struct Variant {
  const char* name;
  int num_heads;
  int key_dim;
  int value_dim;
  int value_in_key;
  int num_keys;    // in the cache
  int num_tokens;  // the last ones, unless all keys are seen
  bool sees_all;
  bool sinks;
  int bias_reach;  // 0: no bias
};

constexpr Variant kVariants[] = {
    {"latent", 16, 576, 512, 64, 700, 2, false, false, 0},
    {"latent of odd sizes", 3, 46, 37, 6, 130, 5, false, false, 0},
    {"narrow latent", 5, 10, 7, 2, 65, 4, false, false, 0},
    {"two dimensions", 4, 72, 24, -1, 600, 7, false, false, 0},
    {"two dimensions, wide values", 2, 32, 80, -1, 90, 20, false, false, 0},
    {"sinks", 6, 64, 64, -1, 520, 4, false, true, 0},
    {"sees all", 1, 64, 64, -1, 77, 48, true, false, 0},
    {"bias", 2, 64, 64, -1, 560, 24, true, false, 128},
    {"causal bias", 3, 24, 24, -1, 300, 16, false, false, 19},
};

std::vector<float> Random(size_t size, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

class VariantRun {
 public:
  VariantRun(const Variant& variant, KvFormat format) : v_(variant), format_(format) {
    keys_ = Random(size_t(v_.num_keys) * v_.key_dim, 1);
    values_ = Random(size_t(v_.num_keys) * v_.value_dim, 2);
    queries_ = Random(size_t(v_.num_tokens) * v_.num_heads * v_.key_dim, 3);
    sinks_ = Random(v_.num_heads, 4);
    for (int head = 0; head < v_.num_heads; ++head) AddBiasRow();
    const int num_blocks = (v_.num_keys + kKvBlockTokens - 1) / kKvBlockTokens;
    for (int i = 0; i < num_blocks; ++i) blocks_.push_back(num_blocks - 1 - i);
  }

  // (num_tokens, num_heads, value_dim)
  std::vector<float> With(const KernelSet& kernels, bool in_spans) {
    const bool has_values = v_.value_in_key < 0;
    const int64_t block_bytes = KeyBlockBytes(format_, v_.key_dim) +
                                (has_values ? ValueBlockBytes(format_, v_.value_dim) : 0);
    // Each block in memory of its own.
    std::vector<std::vector<std::byte>> cache(blocks_.size(),
                                              std::vector<std::byte>(block_bytes + 64));
    std::vector<std::byte*> table;
    for (std::vector<std::byte>& block : cache) table.push_back(Align(block));
    for (int key = 0; key < v_.num_keys; ++key) {
      kernels.store_kv({.format = format_,
                        .key_dim = v_.key_dim,
                        .value_dim = has_values ? v_.value_dim : 0,
                        .first_slot = key % kKvBlockTokens,
                        .num_rows = 1,
                        .keys = &keys_[size_t(key) * v_.key_dim],
                        .values = &values_[size_t(key) * v_.value_dim],
                        .block = table[blocks_[key / kKvBlockTokens]]});
    }
    const ActivationFormat compute = QueryFormat(format_);
    const int padded = PaddedHead(v_.key_dim);
    const int64_t query_bytes = padded * ElementBytes(compute);
    std::vector<std::byte> queries(query_bytes * v_.num_tokens * v_.num_heads + 64);
    for (int row = 0; row < v_.num_tokens * v_.num_heads; ++row) {
      kernels.convert(compute, &queries_[size_t(row) * v_.key_dim], v_.key_dim, padded,
                      Align(queries) + row * query_bytes);
    }
    std::vector<float> out(size_t(v_.num_tokens) * v_.num_heads * v_.value_dim);
    std::vector<std::byte> scratch(AttentionScratchBytes(v_.key_dim, v_.value_dim) + 64);
    const int64_t out_bytes = int64_t{4} * v_.value_dim;
    Attention attention{.format = format_,
                        .out_format = ActivationFormat::kF32,
                        .key_dim = v_.key_dim,
                        .value_dim = v_.value_dim,
                        .value_in_key = v_.value_in_key,
                        .scale = kScale,
                        .num_keys = v_.sees_all ? v_.num_keys : 0,
                        .sinks = v_.sinks ? sinks_.data() : nullptr,
                        .num_tokens = v_.num_tokens,
                        .num_heads = v_.num_heads,
                        .first_position = first_position(),
                        .queries = Align(queries),
                        .query_token_stride = query_bytes * v_.num_heads,
                        .query_head_stride = query_bytes,
                        .kv_blocks = table.data(),
                        .blocks = blocks_.data(),
                        .out = reinterpret_cast<std::byte*>(out.data()),
                        .out_token_stride = out_bytes * v_.num_heads,
                        .out_head_stride = out_bytes,
                        .scratch = Align(scratch)};
    if (v_.bias_reach > 0) attention.bias = {bias_.data(), bias_row(), v_.bias_reach};
    if (!in_spans) {
      kernels.attend(attention);
      return out;
    }
    const int span_floats = v_.num_tokens * v_.num_heads * SpanRowFloats(v_.value_dim);
    std::vector<float> partials(size_t(EndSpan(attention)) * span_floats);
    for (int span = 0; span < EndSpan(attention); ++span) {
      kernels.attend_span(attention, span, &partials[size_t(span) * span_floats]);
    }
    kernels.merge_spans(attention, partials.data());
    return out;
  }

  std::vector<double> Plainly() const {
    std::vector<double> out;
    for (int token = 0; token < v_.num_tokens; ++token) {
      for (int head = 0; head < v_.num_heads; ++head) PlainRow(token, head, &out);
    }
    return out;
  }

 private:
  static constexpr float kScale = 0.15f;

  int first_position() const { return v_.sees_all ? 3 : v_.num_keys - v_.num_tokens; }
  int64_t bias_row() const { return 2 * v_.bias_reach + 1 + 2 * kLanes; }
  void AddBiasRow() {
    const std::vector<float> row =
        Random(2 * v_.bias_reach + 1, 5 + static_cast<int>(bias_.size()));
    bias_.insert(bias_.end(), kLanes, row.front());
    bias_.insert(bias_.end(), row.begin(), row.end());
    bias_.insert(bias_.end(), kLanes, row.back());
  }

  void PlainRow(int token, int head, std::vector<double>* out) const {
    const int position = first_position() + token;
    const int end = v_.sees_all ? v_.num_keys : position + 1;
    const float* query = &queries_[(size_t(token) * v_.num_heads + head) * v_.key_dim];
    double total = v_.sinks ? std::exp(double{sinks_[head]}) : 0;
    std::vector<double> sums(v_.value_dim);
    for (int key = 0; key < end; ++key) {
      double score = 0;
      for (int i = 0; i < v_.key_dim; ++i) {
        score += double{query[i]} * keys_[size_t(key) * v_.key_dim + i];
      }
      if (v_.bias_reach > 0) {
        const int distance = std::clamp(key - position, -v_.bias_reach, v_.bias_reach);
        score += bias_[head * bias_row() + kLanes + v_.bias_reach + distance];
      }
      const double weight = std::exp(score * kScale);
      total += weight;
      for (int i = 0; i < v_.value_dim; ++i) {
        sums[i] +=
            weight * (v_.value_in_key < 0 ? values_[size_t(key) * v_.value_dim + i]
                                          : keys_[size_t(key) * v_.key_dim + v_.value_in_key + i]);
      }
    }
    for (const double sum : sums) out->push_back(sum / total);
  }

  Variant v_;
  KvFormat format_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<float> queries_;
  std::vector<float> sinks_;
  std::vector<float> bias_;
  std::vector<int32_t> blocks_;
};

class AttentionVariantsTest : public testing::TestWithParam<const KernelSet*> {};

TEST_P(AttentionVariantsTest, EqualAPlainComputation) {
  for (const Variant& variant : kVariants) {
    for (const KvFormat format : kEvery<KvFormat>) {
      VariantRun run(variant, format);
      const std::vector<float> whole = run.With(*GetParam(), false);
      const std::vector<float> in_spans = run.With(*GetParam(), true);
      const std::vector<double> expected = run.Plainly();
      // Roundings of queries, keys and probabilities; the scores have a deviation of about one.
      const double bound = format == KvFormat::kF32 ? 2e-5 : 0.06;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(whole[i], expected[i], bound * (1 + std::abs(expected[i])))
            << variant.name << ", " << KvElementBytes(format) << " bytes, at " << i;
      }
      if (GetParam() != &reference::Kernels()) {
        EXPECT_EQ(whole, in_spans) << variant.name << ", " << KvElementBytes(format) << " bytes";
      }
    }
  }
}

TEST_P(AttentionVariantsTest, KeysComeBackAsTheyWereStored) {
  for (const KvFormat format : kEvery<KvFormat>) {
    for (const int key_dim : {576, 46, 7}) {
      const std::vector<float> keys = Random(size_t(kKvBlockTokens) * key_dim, 1);
      std::vector<std::byte> cache(KeyBlockBytes(format, key_dim) + 64);
      GetParam()->store_kv({.format = format,
                            .key_dim = key_dim,
                            .num_rows = kKvBlockTokens,
                            .keys = keys.data(),
                            .key_stride = key_dim,
                            .block = Align(cache)});
      std::vector<float> back(keys.size());
      GetParam()->load_keys({.format = format,
                             .key_dim = key_dim,
                             .num_slots = kKvBlockTokens,
                             .block = Align(cache),
                             .out = back.data(),
                             .out_stride = key_dim});
      const double bound = format == KvFormat::kF32 ? 0 : format == KvFormat::kBf16 ? 0.01 : 0.02;
      for (size_t i = 0; i < keys.size(); ++i) ASSERT_NEAR(back[i], keys[i], bound) << i;
    }
  }
}

// The bytes of a block in which `num_slots` positions were stored, so many at once (the first
// `first` of them before), over what a former owner left.
struct StoredBlock {
  const KernelSet& kernels;
  KvFormat format;
  int key_dim, shared_dim, value_dim;
  std::span<const float> keys, values;

  std::vector<std::byte> Store(int num_slots, int first, int at_once) const {
    const int64_t bytes =
        KvBlockBytes({.format = format, .key_dim = key_dim, .value_dim = value_dim});
    std::vector<std::byte> memory(bytes + 64, std::byte{0xff});
    for (int slot = 0; slot < num_slots;) {
      const int count = slot == 0 && first > 0 ? first : std::min(at_once, num_slots - slot);
      kernels.store_kv({.format = format,
                        .key_dim = key_dim,
                        .value_dim = value_dim,
                        .shared_dim = shared_dim,
                        .first_slot = slot,
                        .num_rows = count,
                        .shared = &keys[size_t(slot) * key_dim],
                        .keys = &keys[size_t(slot) * key_dim + shared_dim],
                        .values = value_dim > 0 ? &values[size_t(slot) * value_dim] : nullptr,
                        .shared_stride = key_dim,
                        .key_stride = key_dim,
                        .value_stride = value_dim,
                        .block = Align(memory)});
      slot += count;
    }
    return {Align(memory), Align(memory) + bytes};
  }
};

TEST_P(AttentionVariantsTest, PositionsStoredAtOnceAreThoseStoredOneByOne) {
  struct Shape {
    int key_dim, shared_dim, value_dim;
  };
  for (const KvFormat format : kEvery<KvFormat>) {
    for (const Shape& s :
         {Shape{192, 64, 128}, Shape{29, 6, 37}, Shape{10, 0, 7}, Shape{80, 0, 0}}) {
      const std::vector<float> keys = Random(size_t(kKvBlockTokens) * s.key_dim, 1);
      const std::vector<float> values = Random(size_t(kKvBlockTokens) * s.value_dim, 2);
      const StoredBlock block{*GetParam(), format, s.key_dim, s.shared_dim,
                              s.value_dim, keys,   values};
      for (const int num_slots : {1, 16, 37, 64}) {
        const std::vector<std::byte> one_by_one = block.Store(num_slots, 0, 1);
        for (const int at_once : {3, 7, 16, 64}) {
          for (const int first : {0, 1, 16}) {
            if (first > num_slots) continue;
            EXPECT_EQ(block.Store(num_slots, first, at_once), one_by_one)
                << KvElementBytes(format) << " bytes, keys of " << s.key_dim << ", " << num_slots
                << " positions, " << at_once << " at once after " << first;
          }
        }
      }
    }
  }
}

TEST_P(AttentionVariantsTest, TheFirstPositionClearsTheBlock) {
  for (const KvFormat format : kEvery<KvFormat>) {
    const std::vector<float> zeros(64);
    const StoredBlock block{*GetParam(), format, 48, 0, 64, zeros, zeros};
    const std::vector<std::byte> bytes = block.Store(1, 0, 1);
    EXPECT_EQ(bytes, std::vector<std::byte>(bytes.size())) << KvElementBytes(format) << " bytes";
  }
}

INSTANTIATE_TEST_SUITE_P(EverySet, AttentionVariantsTest,
                         testing::ValuesIn(SupportedKernels().begin(), SupportedKernels().end()),
                         [](const auto& set) { return std::string(set.param->name); });

}  // namespace
}  // namespace convene::kernels
