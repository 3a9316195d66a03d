#include "weights/packed_directory.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "hardware/thread_pool.h"
#include "weights/load_weights.h"
#include "weights/named_weights.h"
#include "weights/pack_directory.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kGolden = CONVENE_SOURCE_DIR "/tests/golden/models/";

class PackedDirectoryTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / fmt::format("packed_{}_{}", GetParam(), getpid());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  // A fixture packed into `target()`.
  ModelWeights Write(const WeightFormats& formats) {
    const std::string source = kGolden + GetParam();
    auto checkpoint = checkpoint::Checkpoint::Open(source);
    CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
    hardware::ThreadPool pool({0});
    auto weights =
        LoadWeights(*checkpoint, formats, Share{}, hardware::NumaPolicy::kAuto, pool, ledger_, {});
    CHECK(weights.ok(), "{}", weights.error().message);
    const auto written =
        PackDirectory(*checkpoint, formats, {.directory = target()}, pool, ledger_, {});
    CHECK(written.ok(), "{}", written.error().message);
    return *std::move(weights);
  }
  std::string target() const { return (directory_ / "packed").string(); }

  void ExpectRefused(const std::string& message) {
    const auto opened = OpenPackedDirectory(target());
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, HasSubstr(message));
  }

  fs::path directory_;
  memory::Ledger ledger_;
};

void ExpectSameVectors(const MoeWeights& mapped, const MoeWeights& expected) {
  EXPECT_EQ(mapped.router_bias, expected.router_bias);
  EXPECT_EQ(mapped.correction_bias, expected.correction_bias);
  ASSERT_EQ(mapped.experts.size(), expected.experts.size());
  for (size_t i = 0; i < expected.experts.size(); ++i) {
    EXPECT_EQ(mapped.experts[i].up_bias, expected.experts[i].up_bias);
    EXPECT_EQ(mapped.experts[i].down_bias, expected.experts[i].down_bias);
  }
}

void ExpectSameVectors(const std::vector<LayerWeights>& mapped,
                       const std::vector<LayerWeights>& expected) {
  ASSERT_EQ(mapped.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(mapped[i].attention_norm, expected[i].attention_norm);
    EXPECT_EQ(mapped[i].qkv_bias, expected[i].qkv_bias);
    EXPECT_EQ(mapped[i].query_norm, expected[i].query_norm);
    EXPECT_EQ(mapped[i].key_norm, expected[i].key_norm);
    EXPECT_EQ(mapped[i].sinks, expected[i].sinks);
    EXPECT_EQ(mapped[i].output_bias, expected[i].output_bias);
    EXPECT_EQ(mapped[i].ffn_norm, expected[i].ffn_norm);
    ASSERT_EQ(mapped[i].cross.has_value(), expected[i].cross.has_value());
    if (mapped[i].cross) {
      EXPECT_EQ(mapped[i].cross->norm, expected[i].cross->norm);
    }
    ASSERT_EQ(mapped[i].moe.has_value(), expected[i].moe.has_value());
    if (mapped[i].moe) ExpectSameVectors(*mapped[i].moe, *expected[i].moe);
  }
}

// Page by page, each from a multiple of 4,096 bytes on, and the matrices of one without holes.
void ExpectSameMatricesInPages(const ModelWeights& mapped, const ModelWeights& expected) {
  const std::vector<NamedMatrix> here = Matrices(mapped);
  const std::vector<NamedMatrix> there = Matrices(expected);
  ASSERT_EQ(here.size(), there.size());
  const std::byte* end = nullptr;  // of the page so far
  for (size_t i = 0; i < here.size(); ++i) {
    const std::byte* const data = here[i].matrix->data;
    const uint64_t size_bytes = here[i].matrix->size_bytes();
    ASSERT_EQ(size_bytes, there[i].matrix->size_bytes());
    EXPECT_EQ(0, std::memcmp(data, there[i].matrix->data, size_bytes)) << here[i].name;
    if (end == nullptr) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u) << here[i].name;
    } else {
      EXPECT_EQ(data, end) << here[i].name;
    }
    end = here[i].ends_page ? nullptr : data + size_bytes;
  }
}

TEST_P(PackedDirectoryTest, MapsWhatWasPacked) {
  using kernels::WeightFormat;
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kInt4}) {
    fs::remove_all(target());
    const ModelWeights expected = Write({.matrices = format, .group = 64});
    ASSERT_TRUE(IsPackedDirectory(target()));
    auto opened = OpenPackedDirectory(target());
    ASSERT_TRUE(opened) << opened.error().message;
    const Result<ModelWeights> result = MapWeights(*std::move(opened), ledger_);
    ASSERT_TRUE(result) << result.error().message;
    const ModelWeights& mapped = *result;
    EXPECT_EQ(mapped.formats.matrices, format);
    ExpectSameMatricesInPages(mapped, expected);
    EXPECT_EQ(mapped.final_norm, expected.final_norm);
    EXPECT_EQ(mapped.relative_bias, expected.relative_bias);
    ExpectSameVectors(mapped.layers, expected.layers);
    ASSERT_EQ(mapped.encoder.has_value(), expected.encoder.has_value());
    if (!mapped.encoder) continue;
    EXPECT_EQ(mapped.encoder->final_norm, expected.encoder->final_norm);
    EXPECT_EQ(mapped.encoder->relative_bias, expected.encoder->relative_bias);
    ExpectSameVectors(mapped.encoder->layers, expected.encoder->layers);
  }
}

TEST_P(PackedDirectoryTest, RefusesFilesThatDoNotFitTheModel) {
  Write({.matrices = kernels::WeightFormat::kInt4});
  const auto rewrite = [&](const std::string& text) {
    std::ofstream(target() + "/convene.json") << text;
  };
  rewrite(R"({"version": 4, "weights": "int8", "group": 32, "tied_embeddings": false})");
  ExpectRefused("should be");
  rewrite(R"({"version": 4, "weights": "int4", "group": 128, "tied_embeddings": false})");
  ExpectRefused("should be");
  rewrite(R"({"version": 1, "weights": "int4", "group": 32, "tied_embeddings": false})");
  ExpectRefused("version 1 is not 4");
  ExpectRefused("run convene quantize again");
  rewrite(R"({"version": 4, "weights": "int3", "group": 32, "tied_embeddings": false})");
  ExpectRefused("int3");
  rewrite(R"({"version": 4, "weights": "int4", "group": 0, "tied_embeddings": false})");
  ExpectRefused("groups of 0");
  rewrite(R"({"version": 4, "weights": 4})");
  ExpectRefused("weights (a name)");
  rewrite("[");
  ExpectRefused("convene.json");
}

TEST_P(PackedDirectoryTest, RefusesACutFileAndAMissingOne) {
  Write({.matrices = kernels::WeightFormat::kInt8});
  const std::string path = target() + "/convene.safetensors";
  const auto size = fs::file_size(path);
  for (const uint64_t cut : {size - 1, size / 2, uint64_t{100}, uint64_t{7}}) {
    fs::resize_file(path, cut);
    const auto opened = OpenPackedDirectory(target());
    ASSERT_FALSE(opened) << cut;
    EXPECT_EQ(opened.error().kind, ErrorKind::kDataLoss) << cut;
  }
  fs::remove(path);
  ExpectRefused("convene.safetensors");
  EXPECT_EQ(OpenPackedDirectory(target()).error().kind, ErrorKind::kNotFound);
}

TEST_P(PackedDirectoryTest, AFlippedBitOfAnyTensorIsFoundAndNamed) {
  Write({.matrices = kernels::WeightFormat::kInt8});
  const auto opened = OpenPackedDirectory(target());
  ASSERT_TRUE(opened) << opened.error().message;
  hardware::ThreadPool pool({0});
  EXPECT_TRUE(VerifyPacked(*opened, std::nullopt, pool, {}));
  EXPECT_TRUE(VerifyPacked(*opened, Share{}, pool, {}));
  ASSERT_EQ(opened->checksums.size(), opened->tensors.size());
  const std::string path = target() + "/convene.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  for (const checkpoint::StoredTensor& tensor : opened->tensors) {
    const auto place = static_cast<std::streamoff>(tensor.offset + tensor.size_bytes / 3);
    char byte = 0;
    const auto flip = [&] {
      file.seekg(place).get(byte);
      file.seekp(place).put(static_cast<char>(byte ^ 8)).flush();
    };
    flip();  // the file is mapped, and shows it
    for (const auto& share : {std::optional<Share>(), std::optional(Share{})}) {
      const Status damaged = VerifyPacked(*opened, share, pool, {});
      ASSERT_FALSE(damaged) << tensor.name;
      EXPECT_THAT(damaged.error().message, HasSubstr(fmt::format("\"{}\"", tensor.name)));
      EXPECT_THAT(damaged.error().message, HasSubstr(path));
      EXPECT_EQ(damaged.error().kind, ErrorKind::kDataLoss);
    }
    flip();
  }
  EXPECT_TRUE(VerifyPacked(*opened, std::nullopt, pool, {}));
}

TEST_P(PackedDirectoryTest, OfAShareOnlyItsOwnTensorsAreVerified) {
  Write({.matrices = kernels::WeightFormat::kInt8});
  const auto opened = OpenPackedDirectory(target());
  ASSERT_TRUE(opened) << opened.error().message;
  hardware::ThreadPool pool({0});
  // The last expert is the last share's.
  const auto is_expert = [](const checkpoint::StoredTensor& tensor) {
    return tensor.name.find(".experts.") != std::string::npos && tensor.name.ends_with(".down");
  };
  const auto expert = std::find_if(opened->tensors.rbegin(), opened->tensors.rend(), is_expert);
  ASSERT_NE(expert, opened->tensors.rend());
  std::fstream file(target() + "/convene.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  char byte = 0;
  file.seekg(static_cast<std::streamoff>(expert->offset)).get(byte);
  file.seekp(static_cast<std::streamoff>(expert->offset)).put(static_cast<char>(byte ^ 1)).flush();
  EXPECT_TRUE(VerifyPacked(*opened, Share{.expert_share = 0, .expert_shares = 2}, pool, {}));
  const Status damaged =
      VerifyPacked(*opened, Share{.expert_share = 1, .expert_shares = 2}, pool, {});
  ASSERT_FALSE(damaged);
  EXPECT_THAT(damaged.error().message, HasSubstr(expert->name));
}

TEST_P(PackedDirectoryTest, NeverWritesOverAnything) {
  Write({.matrices = kernels::WeightFormat::kInt8});
  hardware::ThreadPool pool({0});
  const auto checkpoint = checkpoint::Checkpoint::Open(kGolden + GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto again = PackDirectory(*checkpoint, {.matrices = kernels::WeightFormat::kInt8},
                                   {.directory = target()}, pool, ledger_, {});
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("not an empty directory"));
  EXPECT_TRUE(OpenPackedDirectory(target()));
}

TEST_P(PackedDirectoryTest, MapsTheExpertsOfAShare) {
  const ModelWeights whole = Write({.matrices = kernels::WeightFormat::kInt8});
  const Share share{.expert_share = 1, .expert_shares = 3, .head = {}};
  auto opened = OpenPackedDirectory(target());
  ASSERT_TRUE(opened) << opened.error().message;
  const Result<ModelWeights> mapped = MapWeights(*std::move(opened), ledger_, share);
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_EQ(mapped->storage.size_bytes(), PackedSizeBytes(mapped->spec, mapped->formats, share));
  EXPECT_LT(mapped->storage.size_bytes(), whole.bytes.size());
  EXPECT_EQ(mapped->head.rows, 0);
  EXPECT_EQ(mapped->embedding.rows, whole.embedding.rows);
  for (size_t layer = 0; layer < whole.layers.size(); ++layer) {
    if (!whole.layers[layer].moe) continue;
    const MoeWeights& all = *whole.layers[layer].moe;
    const MoeWeights& some = *mapped->layers[layer].moe;
    const strategy::Part experts = ExpertsOf(*whole.spec.layers[layer].moe, share);
    EXPECT_EQ(some.first_expert, experts.first);
    ASSERT_EQ(std::ssize(some.experts), experts.size);
    for (int expert = 0; expert < experts.size; ++expert) {
      const FfnWeights& a = some.experts[expert];
      const FfnWeights& b = all.experts[experts.first + expert];
      EXPECT_EQ(a.up_bias, b.up_bias);
      EXPECT_EQ(a.down_bias, b.down_bias);
      EXPECT_EQ(0, std::memcmp(a.up.data, b.up.data, a.up.size_bytes()));
      EXPECT_EQ(0, std::memcmp(a.down.data, b.down.data, a.down.size_bytes()));
    }
  }
}

TEST_P(PackedDirectoryTest, MapsAPartOfTheHead) {
  const ModelWeights whole = Write({.matrices = kernels::WeightFormat::kInt8});
  Share share{.head = strategy::HeadRole{1, 2}};
  if (!LocalSpec(whole.spec, share, whole.formats)) GTEST_SKIP() << "its vocabulary is one panel";
  auto opened = OpenPackedDirectory(target());
  ASSERT_TRUE(opened) << opened.error().message;
  hardware::ThreadPool pool({0});
  EXPECT_TRUE(VerifyPacked(*opened, share, pool, {}));
  const Result<ModelWeights> mapped = MapWeights(*std::move(opened), ledger_, share);
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_EQ(mapped->storage.size_bytes(), PackedSizeBytes(mapped->spec, mapped->formats, share));
  const strategy::Part tokens = share.head->TokensOf(whole.spec.vocab_size);
  ASSERT_EQ(mapped->head.rows, tokens.size);
  EXPECT_EQ(
      0, std::memcmp(mapped->head.data, whole.head.panel(tokens.first / kernels::kPanelRows).data,
                     mapped->head.size_bytes()));
  EXPECT_EQ(mapped->embedding.rows, whole.embedding.rows);
}

TEST_P(PackedDirectoryTest, MapsTheLayersOfAStage) {
  const ModelWeights whole = Write({.matrices = kernels::WeightFormat::kInt8});
  const Share share = ShareOf(strategy::Layout{.stages = 2}, 1);
  if (!LocalSpec(whole.spec, share, whole.formats)) GTEST_SKIP() << "it has an encoder";
  auto opened = OpenPackedDirectory(target());
  ASSERT_TRUE(opened) << opened.error().message;
  const Result<ModelWeights> mapped = MapWeights(*std::move(opened), ledger_, share);
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_EQ(mapped->storage.size_bytes(), PackedSizeBytes(mapped->spec, mapped->formats, share));
  EXPECT_LT(mapped->storage.size_bytes(), whole.bytes.size());
  EXPECT_EQ(mapped->head.rows, 0);
  EXPECT_EQ(mapped->embedding.rows, 0);
  const auto num_layers = static_cast<int>(whole.layers.size());
  for (int layer = 0; layer < num_layers; ++layer) {
    const LayerWeights& there = whole.layers[static_cast<size_t>(layer)];
    const LayerWeights& here = mapped->layers[static_cast<size_t>(layer)];
    const bool has = share.stage.HasLayer(layer, num_layers);
    EXPECT_EQ(here.qkv.rows, has ? there.qkv.rows : 0);
    EXPECT_EQ(here.moe.has_value(), has && there.moe);
    EXPECT_EQ(here.attention_norm.empty(), !has);
    if (!has) continue;
    EXPECT_EQ(0, std::memcmp(here.qkv.data, there.qkv.data, there.qkv.size_bytes()));
  }
}

TEST_P(PackedDirectoryTest, RefusesSharesThatCutMatrices) {
  Write({.matrices = kernels::WeightFormat::kInt8});
  for (const Share& share :
       {Share{.attention_parts = 2}, Share{.expert_slice = 1, .expert_slices = 2}}) {
    auto opened = OpenPackedDirectory(target());
    ASSERT_TRUE(opened) << opened.error().message;
    const Result<ModelWeights> mapped = MapWeights(*std::move(opened), ledger_, share);
    ASSERT_FALSE(mapped);
    EXPECT_THAT(mapped.error().message, HasSubstr("use the original checkpoint"));
  }
}

TEST_P(PackedDirectoryTest, OfPartsHasWhatRanksWithThoseLoad) {
  const auto checkpoint = checkpoint::Checkpoint::Open(kGolden + GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  hardware::ThreadPool pool({0});
  const WeightFormats formats{.matrices = kernels::WeightFormat::kInt8};
  for (const Share& share : {Share{.attention_part = 1,
                            .attention_parts = 2,
                            .expert_slice = 1,
                            .expert_slices = 2,
                            .head = {}},
                             Share{.attention_parts = 2, .expert_share = 1, .expert_shares = 2},
                             Share{.expert_slice = 2, .expert_slices = 3}}) {
    fs::remove_all(target());
    const auto written = PackDirectory(
        *checkpoint, formats, {.directory = target(), .parts = PartsOf(share)}, pool, ledger_, {});
    if (!LocalSpec(checkpoint->spec(), share, formats)) {
      EXPECT_FALSE(written.ok());
      continue;
    }
    ASSERT_TRUE(written.ok()) << written.error().message;
    const auto expected =
        LoadWeights(*checkpoint, formats, share, hardware::NumaPolicy::kAuto, pool, ledger_, {});
    ASSERT_TRUE(expected.ok()) << expected.error().message;
    auto opened = OpenPackedDirectory(target());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_TRUE(VerifyPacked(*opened, std::nullopt, pool, {}));
    const Result<ModelWeights> mapped = MapWeights(*std::move(opened), ledger_, share);
    ASSERT_TRUE(mapped.ok()) << mapped.error().message;
    const std::vector<NamedMatrix> found = Matrices(*mapped);
    const std::vector<NamedMatrix> wanted = Matrices(*expected);
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].name, wanted[i].name);
      ASSERT_EQ(found[i].matrix->size_bytes(), wanted[i].matrix->size_bytes()) << found[i].name;
      EXPECT_EQ(0, std::memcmp(found[i].matrix->data, wanted[i].matrix->data,
                               wanted[i].matrix->size_bytes()))
          << found[i].name;
    }
    ExpectSameVectors(mapped->layers, expected->layers);
    // Other ranks, and a program of one rank, are told what it is.
    for (const Share& other : {Share{}, Share{.attention_parts = 7}}) {
      auto again = OpenPackedDirectory(target());
      ASSERT_TRUE(again.ok()) << again.error().message;
      const Result<ModelWeights> refused = MapWeights(*std::move(again), ledger_, other);
      ASSERT_FALSE(refused.ok());
      EXPECT_THAT(refused.error().message, HasSubstr("use the original checkpoint"));
    }
  }
}

TEST(PackedParts, ThatMakeNoSenseAreRefused) {
  const auto parse = [](const char* parts) {
    return ParsePackedParts(nlohmann::json{{"parts", nlohmann::json::parse(parts)}});
  };
  const auto good = parse(
      R"({"attention_part": 1, "attention_parts": 2, "expert_slice": 0, "expert_slices": 1})");
  ASSERT_TRUE(good.ok()) << good.error().message;
  EXPECT_EQ(good->attention_part, 1);
  EXPECT_TRUE(ParsePackedParts(nlohmann::json::object()).ok());
  for (
      const char* bad :
      {"3", "{}",
       R"({"attention_part": 2, "attention_parts": 2, "expert_slice": 0, "expert_slices": 1})",
       R"({"attention_part": 0, "attention_parts": 1, "expert_slice": -1, "expert_slices": 2})",
       R"({"attention_part": 0, "attention_parts": 1e9, "expert_slice": 0, "expert_slices": 1})",
       R"({"attention_part": 0, "attention_parts": 4000000000, "expert_slice": 0, "expert_slices": 1})"}) {
    const auto parsed = parse(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_THAT(parsed.error().message, HasSubstr("parts needs"));
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PackedDirectoryTest,
                         testing::Values("mixtral_plain", "qwen2_many", "olmoe_plain", "dbrx_plain",
                                         "deepseek_v2_greedy", "deepseek_v3_fp8", "gpt_oss_mxfp4",
                                         "granitemoe_plain", "switch_plain", "switch_untied"));

}  // namespace
}  // namespace convene::weights
