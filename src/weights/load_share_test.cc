// What ranks load of the golden models together is what one rank loads, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "weights/load_weights.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;
using kernels::PackedMatrix;
using kernels::WeightFormat;
using strategy::Part;

const std::string kGoldenOfShares = CONVENE_SOURCE_DIR "/tests/golden/models/";
constexpr WeightFormat kShareFormats[] = {WeightFormat::kF32, WeightFormat::kBf16,
                                          WeightFormat::kInt8, WeightFormat::kInt4};

checkpoint::Checkpoint FixtureOfShares(const std::string& name) {
  Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::Open(kGoldenOfShares + name);
  CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
  return *std::move(checkpoint);
}

std::vector<std::string> EveryFixture() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kGoldenOfShares)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<float> Row(const PackedMatrix& matrix, int row) {
  std::vector<float> values(matrix.cols);
  kernels::UnpackRow(matrix, row, values.data());
  return values;
}

std::vector<float> Cut(const std::vector<float>& values, Part part) {
  return {values.begin() + part.first, values.begin() + part.first + part.size};
}

// Row i of `local` is row whole_row(i) of `whole` from column first_col on; zeros where that is -1.
template <typename F>
void ExpectPart(const PackedMatrix& local, const PackedMatrix& whole, F&& whole_row,
                int first_col = 0) {
  ASSERT_LE(first_col + local.cols, whole.cols);
  for (int row = 0; row < local.rows; ++row) {
    const int from = whole_row(row);
    const std::vector<float> expected =
        from < 0 ? std::vector<float>(local.cols) : Cut(Row(whole, from), {first_col, local.cols});
    ASSERT_EQ(Row(local, row), expected) << "row " << row << " of " << local.rows;
  }
}

void ExpectSame(const PackedMatrix& local, const PackedMatrix& whole) {
  ASSERT_EQ(local.rows, whole.rows);
  ExpectPart(local, whole, [](int row) { return row; });
}

class LoadShareTest : public testing::TestWithParam<std::string> {
 protected:
  LoadShareTest() : checkpoint_(FixtureOfShares(GetParam())), pool_({0}) {}

  ModelWeights Load(const WeightFormats& formats, const Share& share) {
    auto weights =
        LoadWeights(checkpoint_, formats, share, hardware::NumaPolicy::kAuto, pool_, ledger_, {});
    CHECK(weights.ok(), "{}", weights.error().message);
    share_ = share;
    formats_ = formats;
    return *std::move(weights);
  }

  bool Fits(const WeightFormats& formats, const Share& share) {
    return LocalSpec(checkpoint_.spec(), share, formats).ok();
  }

  // int4 columns of other groups than the whole matrix has are other numbers (pack.h).
  bool HasGroupsOfTheWhole(Part columns, int cols) const {
    const int group = formats_.matrices == WeightFormat::kInt4 ? formats_.group : 1;
    const int end = columns.first + columns.size;
    return columns.first % group == 0 && (end % group == 0 || end == cols);
  }

  void ExpectColumns(const PackedMatrix& local, const PackedMatrix& whole, int first_col) const {
    ASSERT_EQ(local.rows, whole.rows);
    if (!HasGroupsOfTheWhole({first_col, local.cols}, whole.cols)) return;
    ExpectPart(
        local, whole, [](int row) { return row; }, first_col);
  }

  void ExpectRows(const PackedMatrix& local, const PackedMatrix& whole,
                  const std::vector<Part>& parts) const {
    std::vector<int> rows;
    for (const Part& part : parts) {
      for (int i = 0; i < part.size; ++i) rows.push_back(part.first + i);
    }
    ASSERT_EQ(local.rows, std::ssize(rows));
    ExpectPart(local, whole, [&](int row) { return rows[row]; });
  }

  // Queries, keys and values as they are stacked.
  static std::vector<Part> Stacked(const model::AttentionSpec& spec, const HeadParts& heads,
                                   bool with_queries) {
    const int keys = with_queries ? spec.query_dim() : 0;
    const auto at = [&](Part part, int size, int first) {
      return Part{first + part.first * size, part.size * size};
    };
    std::vector<Part> parts;
    if (with_queries) parts.push_back(at(heads.query, spec.head_dim, 0));
    parts.push_back(at(heads.kv, spec.head_dim, keys));
    parts.push_back(at(heads.kv, spec.value_dim, keys + spec.kv_dim()));
    return parts;
  }

  static void ExpectCut(const std::vector<float>& local, const std::vector<float>& whole,
                        const std::vector<Part>& parts) {
    std::vector<float> expected;
    for (const Part& part : parts) {
      if (whole.empty()) break;
      expected.insert(expected.end(), whole.begin() + part.first,
                      whole.begin() + part.first + part.size);
    }
    EXPECT_EQ(local, expected);
  }

  void ExpectLatent(const model::AttentionSpec& spec, const LayerWeights& local,
                    const LayerWeights& whole) const {
    const Part heads = HeadsOf(spec, share_).query;
    const model::LatentSpec& latent = *spec.latent;
    const Part queries = {heads.first * spec.head_dim, heads.size * spec.head_dim};
    const Part keys = {whole.qkv.rows - latent.key_dim(), latent.key_dim()};
    if (latent.query_rank > 0) {
      ExpectRows(local.latent->query_up, whole.latent->query_up, {queries});
      ExpectRows(local.qkv, whole.qkv, {{0, latent.query_rank}, keys});
      EXPECT_EQ(local.qkv_bias, whole.qkv_bias);
    } else {
      ExpectRows(local.qkv, whole.qkv, {queries, keys});
      ExpectCut(local.qkv_bias, whole.qkv_bias, {queries, keys});
    }
    const int key_rows = LatentWeights::HeadRows(latent.nope_dim);
    const int value_rows = LatentWeights::HeadRows(spec.value_dim);
    ExpectRows(local.latent->key_up, whole.latent->key_up,
               {{heads.first * key_rows, heads.size * key_rows}});
    ExpectRows(local.latent->value_up, whole.latent->value_up,
               {{heads.first * value_rows, heads.size * value_rows}});
    ASSERT_EQ(std::ssize(local.latent->query_in), heads.size);
    for (int head = 0; head < heads.size; ++head) {
      ExpectSame(local.latent->query_in[head], whole.latent->query_in[heads.first + head]);
    }
    EXPECT_EQ(local.query_norm, whole.query_norm);
    EXPECT_EQ(local.key_norm, whole.key_norm);
  }

  void ExpectAttention(const model::AttentionSpec& spec, const LayerWeights& local,
                       const LayerWeights& whole) const {
    const HeadParts heads = HeadsOf(spec, share_);
    if (spec.latent) {
      ExpectLatent(spec, local, whole);
    } else {
      const std::vector<Part> parts = Stacked(spec, heads, /*with_queries=*/true);
      ExpectRows(local.qkv, whole.qkv, parts);
      ExpectCut(local.qkv_bias, whole.qkv_bias, parts);
      const bool is_cut = spec.qk_norm == model::QkNorm::kWholeProjection;
      const Part all_of_a_head = {0, spec.head_dim};
      const Part keys = {heads.kv.first * spec.head_dim, heads.kv.size * spec.head_dim};
      ExpectCut(local.query_norm, whole.query_norm, {is_cut ? parts[0] : all_of_a_head});
      ExpectCut(local.key_norm, whole.key_norm, {is_cut ? keys : all_of_a_head});
    }
    ExpectCut(local.sinks, whole.sinks, {heads.query});
    ExpectColumns(local.output, whole.output, heads.query.first * spec.value_dim);
    EXPECT_EQ(local.output_bias,
              share_.attention_part == 0 ? whole.output_bias : std::vector<float>());
    EXPECT_EQ(local.attention_norm, whole.attention_norm);
  }

  void ExpectCross(const model::AttentionSpec& spec, const CrossWeights& local,
                   const CrossWeights& whole) const {
    const HeadParts heads = HeadsOf(spec, share_);
    ExpectRows(local.query, whole.query,
               {{heads.query.first * spec.head_dim, heads.query.size * spec.head_dim}});
    ExpectRows(local.kv, whole.kv, Stacked(spec, heads, /*with_queries=*/false));
    ExpectColumns(local.output, whole.output, heads.query.first * spec.value_dim);
    EXPECT_EQ(local.norm, whole.norm);
  }

  void ExpectSlice(const model::MoeSpec& spec, const FfnWeights& local,
                   const FfnWeights& whole) const {
    const Part slice = SliceOf(spec, share_, formats_);
    std::map<std::pair<bool, int>, int> packed_rows;  // where a row is in the whole matrix
    const bool is_gated = spec.activation.gated();
    for (int row = 0; row < whole.up.rows; ++row) {
      const auto at = is_gated ? kernels::GateUpRowAt(spec.intermediate_size, row)
                               : kernels::GateUpRow{true, row};
      packed_rows[{at.is_up, at.row}] = row;
    }
    ASSERT_EQ(local.up.rows, is_gated ? kernels::GateUpRows(slice.size) : slice.size);
    const auto whole_row = [&](int row) {
      const auto at =
          is_gated ? kernels::GateUpRowAt(slice.size, row) : kernels::GateUpRow{true, row};
      return at.row < slice.size ? packed_rows.at({at.is_up, slice.first + at.row}) : -1;
    };
    ExpectPart(local.up, whole.up, whole_row);
    ASSERT_EQ(local.up_bias.empty(), whole.up_bias.empty());
    for (int row = 0; row < std::ssize(local.up_bias); ++row) {
      EXPECT_EQ(local.up_bias[row], whole_row(row) < 0 ? 0 : whole.up_bias[whole_row(row)]);
    }
    ASSERT_TRUE(HasGroupsOfTheWhole(slice, spec.intermediate_size));
    ExpectColumns(local.down, whole.down, slice.first);
    EXPECT_EQ(local.down_bias, share_.expert_slice == 0 ? whole.down_bias : std::vector<float>());
  }

  void ExpectMoe(const model::MoeSpec& spec, const MoeWeights& local,
                 const MoeWeights& whole) const {
    ExpectSame(local.router, whole.router);
    EXPECT_EQ(local.router_bias, whole.router_bias);
    EXPECT_EQ(local.correction_bias, whole.correction_bias);
    const Part experts = ExpertsOf(spec, share_);
    EXPECT_EQ(local.first_expert, experts.first);
    ASSERT_EQ(std::ssize(local.experts), experts.size);
    for (int expert = 0; expert < experts.size; ++expert) {
      ExpectSlice(spec, local.experts[expert], whole.experts[experts.first + expert]);
    }
    ASSERT_EQ(local.shared.has_value(), whole.shared.has_value());
    if (!whole.shared) return;
    ExpectSame(local.shared->up, whole.shared->up);
    ExpectSame(local.shared->down, whole.shared->down);
  }

  void ExpectLayers(const std::vector<model::LayerSpec>& specs,
                    const std::vector<LayerWeights>& local,
                    const std::vector<LayerWeights>& whole) const {
    const auto num_layers = static_cast<int>(specs.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      SCOPED_TRACE(fmt::format("layer {}", i));
      if (!share_.stage.HasLayer(static_cast<int>(i), num_layers)) {
        EXPECT_EQ(local[i].qkv.rows, 0);
        EXPECT_FALSE(local[i].dense || local[i].moe);
        EXPECT_TRUE(local[i].attention_norm.empty());
        continue;
      }
      ExpectAttention(specs[i].attention, local[i], whole[i]);
      if (whole[i].cross) ExpectCross(*specs[i].cross_attention, *local[i].cross, *whole[i].cross);
      EXPECT_EQ(local[i].ffn_norm, whole[i].ffn_norm);
      if (specs[i].moe) {
        ExpectMoe(*specs[i].moe, *local[i].moe, *whole[i].moe);
      } else {
        ExpectSame(local[i].dense->up, whole[i].dense->up);
        ExpectSame(local[i].dense->down, whole[i].dense->down);
      }
    }
  }

  void ExpectRelativeBias(const model::AttentionSpec& spec, const std::vector<float>& local,
                          const std::vector<float>& whole) const {
    const Part heads = HeadsOf(spec, share_).query;
    std::vector<Part> parts;
    for (int first = 0; first < std::ssize(whole); first += spec.num_heads) {
      parts.push_back({first + heads.first, heads.size});
    }
    ExpectCut(local, whole, parts);
  }

  void ExpectShareOf(const ModelWeights& whole, const ModelWeights& local) const {
    SCOPED_TRACE(fmt::format("{}: attention {}/{}, experts {}/{}, slice {}/{}",
                             Name(formats_.matrices), share_.attention_part, share_.attention_parts,
                             share_.expert_share, share_.expert_shares.num_shares(),
                             share_.expert_slice, share_.expert_slices));
    EXPECT_EQ(local.bytes.size(), PackedSizeBytes(local.spec, formats_, share_));
    if (share_.with_embedding()) {
      ExpectSame(local.embedding, whole.embedding);
    } else {
      EXPECT_EQ(local.embedding.rows, 0);
    }
    if (share_.with_head()) {
      const Part tokens = share_.head->TokensOf(whole.spec.vocab_size);
      ExpectRows(local.head, whole.head, {tokens});
      EXPECT_EQ(local.first_head_token, tokens.first);
    } else {
      EXPECT_EQ(local.head.rows, 0);
    }
    EXPECT_EQ(local.final_norm, whole.final_norm);
    ExpectLayers(whole.spec.layers, local.layers, whole.layers);
    ExpectRelativeBias(whole.spec.layers[0].attention, local.relative_bias, whole.relative_bias);
    ASSERT_EQ(local.encoder.has_value(), whole.encoder.has_value());
    if (!whole.encoder) return;
    ExpectSame(local.encoder->embedding, whole.encoder->embedding);
    EXPECT_EQ(local.encoder->final_norm, whole.encoder->final_norm);
    ExpectLayers(whole.spec.encoder_layers, local.encoder->layers, whole.encoder->layers);
    ExpectRelativeBias(whole.spec.encoder_layers[0].attention, local.encoder->relative_bias,
                       whole.encoder->relative_bias);
  }

  checkpoint::Checkpoint checkpoint_;
  hardware::ThreadPool pool_;
  memory::Ledger ledger_;
  Share share_;  // of the last Load, as the formats
  WeightFormats formats_;
};

TEST_P(LoadShareTest, PartsOfMatricesAreThoseOfTheWhole) {
  for (const WeightFormat format : kShareFormats) {
    const WeightFormats formats{.matrices = format};
    const ModelWeights whole = Load(formats, {});
    for (const int parts : {2, 3, 4}) {
      for (int part = 0; part < parts; ++part) {
        const Share heads{.attention_part = part, .attention_parts = parts};
        Share slices{.expert_slice = part, .expert_slices = parts};
        if (part != 1) slices.head.reset();
        if (Fits(formats, heads)) ExpectShareOf(whole, Load(formats, heads));
        if (Fits(formats, slices)) ExpectShareOf(whole, Load(formats, slices));
      }
    }
  }
}

TEST_P(LoadShareTest, PartsOfTheHeadAreOfWholePanels) {
  const int vocab_size = checkpoint_.spec().vocab_size;
  const int num_panels = (vocab_size + strategy::kHeadPanelTokens - 1) / strategy::kHeadPanelTokens;
  for (const WeightFormat format : kShareFormats) {
    const WeightFormats formats{.matrices = format};
    const ModelWeights whole = Load(formats, {});
    for (const int parts : {2, 3}) {
      Share share{.head = strategy::HeadRole{0, parts}};
      if (parts > num_panels) {
        const auto refused = LocalSpec(checkpoint_.spec(), share, formats);
        ASSERT_FALSE(refused);
        EXPECT_THAT(refused.error().message, ::testing::HasSubstr("parts of whole panels"));
        continue;
      }
      int next_token = 0;
      for (int part = 0; part < parts; ++part) {
        share.head->part = part;
        const ModelWeights local = Load(formats, share);
        ExpectShareOf(whole, local);
        EXPECT_EQ(local.first_head_token, next_token);
        next_token += local.head.rows;
      }
      EXPECT_EQ(next_token, vocab_size);
    }
  }
}

uint64_t ExpertBytes(const ModelWeights& weights) {
  uint64_t total = 0;
  for (const LayerWeights& layer : weights.layers) {
    if (!layer.moe) continue;
    for (const FfnWeights& ffn : layer.moe->experts) {
      total += ffn.up.size_bytes() + ffn.down.size_bytes();
    }
  }
  return total;
}

TEST_P(LoadShareTest, SharesOfExpertsAddUpToAll) {
  for (const WeightFormat format : kShareFormats) {
    const WeightFormats formats{.matrices = format};
    const ModelWeights whole = Load(formats, {});
    for (const int shares : {2, 3, 4}) {
      if (!Fits(formats, {.expert_shares = shares})) continue;
      uint64_t total_bytes = 0;
      for (int share = 0; share < shares; ++share) {
        const ModelWeights local = Load(formats, {.expert_share = share, .expert_shares = shares});
        ExpectShareOf(whole, local);
        total_bytes += ExpertBytes(local);
      }
      EXPECT_EQ(total_bytes, ExpertBytes(whole));
    }
  }
}

TEST_P(LoadShareTest, DividesHeadsExpertsAndSlicesAtOnce) {
  const WeightFormats formats{.matrices = WeightFormat::kBf16};
  const strategy::Layout layout{
      .attention_tp = 2, .attention_dp = 2, .expert_ep = 2, .expert_tp = 2};
  if (!Fits(formats, ShareOf(layout, 0))) GTEST_SKIP() << "too few heads";
  const ModelWeights whole = Load(formats, {});
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    ExpectShareOf(whole, Load(formats, ShareOf(layout, rank)));
  }
}

TEST_P(LoadShareTest, StagesHaveSomeOfTheLayersWholeAndTogetherAll) {
  const WeightFormats formats{.matrices = WeightFormat::kInt8};
  const strategy::Layout layout{.stages = 2};
  if (!Fits(formats, ShareOf(layout, 0))) GTEST_SKIP() << "it has an encoder";
  const ModelWeights whole = Load(formats, {});
  uint64_t total_bytes = 0;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    const ModelWeights local = Load(formats, ShareOf(layout, rank));
    ExpectShareOf(whole, local);
    total_bytes += ExpertBytes(local);
  }
  EXPECT_EQ(total_bytes, ExpertBytes(whole));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LoadShareTest, testing::ValuesIn(EveryFixture()),
                         [](const auto& fixture) { return fixture.param; });

// Of tensors that are stored one for each expert and for each of q, k and v.
TEST(LoadWeights, ReadsOnlyTheRowsAndExpertsOfTheShare) {
  const checkpoint::Checkpoint checkpoint = FixtureOfShares("olmoe_plain");
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  const auto read_bytes = [&](const Share& share) {
    uint64_t read = 0;
    const auto weights = LoadWeights(checkpoint, {}, share, hardware::NumaPolicy::kAuto, pool,
                                     ledger, [&](uint64_t, uint64_t total) { read = total; });
    CHECK(weights.ok(), "{}", weights.error().message);
    return read;
  };
  uint64_t qkv_bytes = 0;
  uint64_t expert_bytes = 0;
  uint64_t gate_up_bytes = 0;
  for (const model::TensorBinding& binding : checkpoint.spec().tensors) {
    using enum model::TensorRole;
    const uint64_t bytes = checkpoint.View(binding).bytes.size();
    const auto role = binding.role;
    if (role == kQuery || role == kKey || role == kValue) qkv_bytes += bytes;
    if (binding.expert >= 0) expert_bytes += bytes;
    if (role == kExpertGate || role == kExpertUp) gate_up_bytes += bytes;
  }
  const uint64_t whole = read_bytes({});
  EXPECT_EQ(read_bytes({.attention_part = 3, .attention_parts = 4}), whole - qkv_bytes / 4 * 3);
  EXPECT_EQ(read_bytes({.expert_share = 1, .expert_shares = 4}), whole - expert_bytes / 4 * 3);
  EXPECT_EQ(read_bytes({.expert_slice = 1, .expert_slices = 4}), whole - gate_up_bytes / 4 * 3);
}

}  // namespace
}  // namespace convene::weights
