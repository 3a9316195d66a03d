#include "checkpoint/synthesize.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "base/read_file.h"
#include "checkpoint/checkpoint.h"

namespace convene::checkpoint {
namespace {

namespace fs = std::filesystem;
using model::TensorRole;

// A place of its own for each test, removed afterwards.
class SynthesizeTest : public testing::Test {
 protected:
  SynthesizeTest() : root_(fs::path(testing::TempDir()) / fmt::format("synthesize_{}", getpid())) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~SynthesizeTest() override { fs::remove_all(root_); }

  std::string Config(std::string_view text) const {
    std::ofstream(root_ / "source.json") << text;
    return (root_ / "source.json").string();
  }
  std::string Path(const std::string& name) const { return (root_ / name).string(); }

  static std::string Bytes(const std::string& path) { return *ReadFile(path, 1 << 30); }

  fs::path root_;
};

constexpr std::string_view kMixtral = R"({"model_type": "mixtral", "hidden_size": 64,
    "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 8, "vocab_size": 512, "marker": "kept"})";

TEST_F(SynthesizeTest, EveryFamilyLoadsAgain) {
  const std::string sizes = R"("hidden_size": 32, "intermediate_size": 24, "vocab_size": 40,
      "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 5, "num_hidden_layers": 3,
      "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28)";
  const std::string configs[] = {
      R"({"model_type": "mixtral", "num_local_experts": 5, )" + sizes + "}",
      R"({"model_type": "qwen2_moe", "mlp_only_layers": [1], )" + sizes + "}",
      R"({"model_type": "qwen3_moe", "num_experts_per_tok": 3, "attention_bias": true, )" + sizes +
          "}",
      R"({"model_type": "olmoe", "num_experts_per_tok": 1, "tie_word_embeddings": true, )" + sizes +
          "}",
      R"({"model_type": "dbrx", "d_model": 32, "n_heads": 4, "n_layers": 3, "vocab_size": 40,
          "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 5}})",
      R"({"model_type": "granitemoe", "num_local_experts": 5, )" + sizes + "}",
      R"({"model_type": "gpt_oss", "num_local_experts": 5, "head_dim": 8, )" + sizes + "}",
      R"({"model_type": "gpt_oss", "num_local_experts": 5, "head_dim": 8, "hidden_size": 64,
          "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
          "vocab_size": 40, "quantization_config": {"quant_method": "mxfp4"}})",
      R"({"model_type": "qwen3_moe", "num_experts_per_tok": 3, "quantization_config":
          {"quant_method": "fp8", "weight_block_size": [128, 128]}, )" +
          sizes + "}"};
  for (const std::string& config : configs) {
    const std::string directory = Path("model");
    const auto summary = Synthesize(Config(config), directory, {.num_layers = 2}, {});
    ASSERT_TRUE(summary) << summary.error().message;
    const auto checkpoint = Checkpoint::Open(directory);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->spec().num_layers(), 2);
    EXPECT_EQ(checkpoint->size_bytes(), summary->size_bytes);
    fs::remove_all(directory);
  }
}

TEST_F(SynthesizeTest, ScalesMatricesByTheirInputAndLeavesNormsAtOne) {
  ASSERT_TRUE(Synthesize(Config(kMixtral), Path("model"), {}, {}));
  const auto checkpoint = Checkpoint::Open(Path("model"));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  for (const model::TensorBinding& binding : checkpoint->spec().tensors) {
    const TensorView view = checkpoint->View(binding);
    double squares = 0;
    const auto count = static_cast<size_t>(view.rows * view.cols);
    for (size_t i = 0; i < count; ++i) {
      const double value = tensor::LoadElement(view.dtype, view.bytes.data(), i);
      if (view.cols == 1) {
        EXPECT_EQ(value, 1) << binding.name;
      }
      squares += value * value;
    }
    const double size = std::sqrt(squares / static_cast<double>(count));
    const double expected = binding.role == TensorRole::kEmbedding ? 1024
                            : view.cols == 1                       ? 1
                                                                   : 1 / std::sqrt(view.cols);
    EXPECT_NEAR(size / expected, 1, 0.1) << binding.name;
  }
}

// What a router that meets embeddings of this checkpoint chooses, by counting.
TEST_F(SynthesizeTest, RoutersChooseExpertsAsOftenAsIsAsked) {
  const std::vector<double> wanted = {0.9, 0.05, 0.2, 0.2, 0.3, 0.05, 0.2, 0.1};  // two of a token
  const std::vector<double> even(8, 0.25);
  ASSERT_TRUE(Synthesize(Config(kMixtral), Path("model"),
                         {.router_shares = {wanted, even, wanted, even}}, {}));
  const auto checkpoint = Checkpoint::Open(Path("model"));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto view_of = [&](TensorRole role, int layer) {
    const auto& tensors = checkpoint->spec().tensors;
    const auto found = std::ranges::find_if(tensors, [&](const model::TensorBinding& each) {
      return each.role == role && (layer < 0 || each.layer == layer);
    });
    CHECK(found != tensors.end(), "no such tensor");
    return checkpoint->View(*found);
  };
  const TensorView embedding = view_of(TensorRole::kEmbedding, -1);
  const auto element = [](const TensorView& view, int64_t row, int64_t col) {
    return static_cast<double>(tensor::LoadElement(view.dtype, view.bytes.data(),
                                                   static_cast<size_t>(row * view.cols + col)));
  };
  for (int layer = 0; layer < 2; ++layer) {
    const TensorView router = view_of(TensorRole::kRouter, layer);
    std::vector<double> shares(8, 0);
    for (int64_t token = 0; token < embedding.rows; ++token) {
      std::vector<std::pair<double, size_t>> logits(8);
      for (size_t expert = 0; expert < 8; ++expert) {
        logits[expert].second = expert;
        for (int64_t col = 0; col < embedding.cols; ++col) {
          logits[expert].first +=
              element(embedding, token, col) * element(router, static_cast<int64_t>(expert), col);
        }
      }
      std::ranges::sort(logits, std::greater<>());
      for (int i = 0; i < 2; ++i) {
        shares[logits[i].second] += 1.0 / static_cast<double>(embedding.rows);
      }
    }
    const std::vector<double>& asked = layer == 0 ? wanted : even;
    for (size_t expert = 0; expert < 8; ++expert) {
      EXPECT_NEAR(shares[expert], asked[expert], 0.12) << "layer " << layer << " " << expert;
    }
  }
}

TEST_F(SynthesizeTest, SharesOfOtherExpertsAreRefused) {
  const std::vector<double> eight(8, 0.25);
  for (const auto& shares : {std::vector<std::vector<double>>(3, eight),
                             std::vector<std::vector<double>>(4, {0.5, 1.5})}) {
    const auto refused = Synthesize(Config(kMixtral), Path("model"), {.router_shares = shares}, {});
    EXPECT_FALSE(refused);
    EXPECT_FALSE(fs::exists(Path("model")));
  }
}

TEST_F(SynthesizeTest, QueriesAreSmallerWhereScoresAreNotScaled) {
  const std::string config = R"({"model_type": "switch_transformers", "d_model": 60, "d_kv": 16,
      "d_ff": 30, "num_heads": 4, "num_experts": 2, "vocab_size": 40, "num_decoder_layers": 12})";
  ASSERT_TRUE(Synthesize(Config(config), Path("model"), {.num_layers = 2}, {}));
  const auto checkpoint = Checkpoint::Open(Path("model"));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  int queries = 0;
  for (const model::TensorBinding& binding : checkpoint->spec().tensors) {
    const bool is_query =
        binding.role == TensorRole::kQuery || binding.role == TensorRole::kCrossQuery;
    if (!is_query && binding.role != TensorRole::kKey) continue;
    queries += is_query ? 1 : 0;
    const TensorView view = checkpoint->View(binding);
    const auto count = static_cast<size_t>(view.rows * view.cols);
    double squares = 0;
    for (size_t i = 0; i < count; ++i) {
      squares += std::pow(tensor::LoadElement(view.dtype, view.bytes.data(), i), 2);
    }
    const double size = std::sqrt(squares / static_cast<double>(count));
    // d_model^-1/2, and for queries d_kv^-1/2 beside it.
    EXPECT_NEAR(size * std::sqrt(60), is_query ? 0.25 : 1, is_query ? 0.025 : 0.1) << binding.name;
  }
  EXPECT_EQ(queries, 6);
}

TEST_F(SynthesizeTest, ScalesQuantisedMatricesByTheirInputToo) {
  const std::string fp8 = R"({"model_type": "qwen3_moe", "hidden_size": 200, "head_dim": 64,
      "intermediate_size": 300, "moe_intermediate_size": 130, "num_attention_heads": 3,
      "num_key_value_heads": 1, "num_experts": 2, "num_experts_per_tok": 1, "vocab_size": 40,
      "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})";
  const std::string mxfp4 = R"({"model_type": "gpt_oss", "hidden_size": 64,
      "intermediate_size": 96, "head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
      "num_local_experts": 5, "vocab_size": 40, "quantization_config": {"quant_method": "mxfp4"}})";
  for (const std::string& config : {fp8, mxfp4}) {
    ASSERT_TRUE(Synthesize(Config(config), Path("model"), {.num_layers = 1}, {}));
    const auto checkpoint = Checkpoint::Open(Path("model"));
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    int quantised = 0;
    for (const model::TensorBinding& binding : checkpoint->spec().tensors) {
      if (binding.storage == model::Storage::kPlain) continue;
      ++quantised;
      const TensorView view = checkpoint->View(binding);
      double squares = 0;
      for (int64_t row = 0; row < view.rows; ++row) {
        for (int64_t col = 0; col < view.cols; ++col) {
          const auto index = static_cast<size_t>(row * view.cols + col);
          const double value = tensor::LoadElement(view.dtype, view.bytes.data(), index) *
                               view.scales.At(binding.first_row + row, col);
          squares += value * value;
        }
      }
      const auto count = static_cast<double>(view.rows * view.cols);
      EXPECT_NEAR(std::sqrt(squares / count * static_cast<double>(view.cols)), 1, 0.1)
          << binding.name;
    }
    EXPECT_GT(quantised, 6);
    fs::remove_all(Path("model"));
  }
}

TEST_F(SynthesizeTest, KeepsTheConfigurationButForLayersAndDtype) {
  ASSERT_TRUE(Synthesize(Config(kMixtral), Path("model"), {.num_layers = 2}, {}));
  const auto config = nlohmann::json::parse(Bytes(Path("model/config.json")));
  EXPECT_EQ(config.at("num_hidden_layers"), 2);
  EXPECT_EQ(config.at("torch_dtype"), "bfloat16");
  EXPECT_EQ(config.at("marker"), "kept");
  EXPECT_FALSE(fs::exists(Path("model/model.safetensors.index.json")));
}

TEST_F(SynthesizeTest, TheBytesDependOnTheSeedAndNotOnTheThreads) {
  const std::string config = Config(kMixtral);
  ASSERT_TRUE(Synthesize(config, Path("a"), {.seed = 5, .num_threads = 1}, {}));
  ASSERT_TRUE(Synthesize(config, Path("b"), {.seed = 5, .num_threads = 3}, {}));
  ASSERT_TRUE(Synthesize(config, Path("c"), {.seed = 6}, {}));
  const std::string weights = Bytes(Path("a/model.safetensors"));
  EXPECT_EQ(weights, Bytes(Path("b/model.safetensors")));
  EXPECT_NE(weights, Bytes(Path("c/model.safetensors")));
}

TEST_F(SynthesizeTest, CutsShardsAndWritesTheirIndex) {
  const auto summary =
      Synthesize(Config(kMixtral), Path("model"), {.max_shard_bytes = 100'000}, {});
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_GT(summary->num_shards, 3);
  for (int i = 1; i <= summary->num_shards; ++i) {
    const std::string shard =
        Path(fmt::format("model/model-{:05}-of-{:05}.safetensors", i, summary->num_shards));
    EXPECT_LE(fs::file_size(shard), 100'000u + 10'000u) << "with its header";
  }
  const auto index = nlohmann::json::parse(Bytes(Path("model/model.safetensors.index.json")));
  EXPECT_EQ(index.at("metadata").at("total_size"), summary->size_bytes);
  EXPECT_EQ(static_cast<int64_t>(index.at("weight_map").size()), summary->num_tensors);
  const auto checkpoint = Checkpoint::Open(Path("model"));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
}

TEST_F(SynthesizeTest, ReportsProgressUpToTheEnd) {
  uint64_t last_done = 0;
  uint64_t last_total = 0;
  const auto summary = Synthesize(Config(kMixtral), Path("model"), {.num_threads = 2},
                                  [&](uint64_t done, uint64_t total) {
                                    EXPECT_GE(done, last_done);
                                    last_done = done;
                                    last_total = total;
                                  });
  ASSERT_TRUE(summary);
  EXPECT_EQ(last_done, summary->size_bytes);
  EXPECT_EQ(last_total, summary->size_bytes);
}

TEST_F(SynthesizeTest, RefusesAnOutputDirectoryThatHoldsSomething) {
  fs::create_directories(Path("model"));
  std::ofstream(Path("model/notes.txt")) << "mine";
  const auto summary = Synthesize(Config(kMixtral), Path("model"), {}, {});
  ASSERT_FALSE(summary);
  EXPECT_NE(summary.error().message.find("not an empty directory"), std::string::npos);
  EXPECT_TRUE(fs::exists(Path("model/notes.txt")));
  EXPECT_FALSE(Synthesize(Config(kMixtral), Path("source.json"), {}, {}));
}

TEST_F(SynthesizeTest, SaysBeforehandThatTheDiskIsTooSmall) {
  const auto summary = Synthesize(
      Config(R"({"model_type": "mixtral", "hidden_size": 131072, "intermediate_size": 1048576,
                 "num_local_experts": 16, "num_hidden_layers": 8})"),
      Path("model"), {}, {});
  ASSERT_FALSE(summary);
  EXPECT_NE(summary.error().message.find("fewer layers"), std::string::npos)
      << summary.error().message;
  EXPECT_EQ(summary.error().kind, ErrorKind::kResourceExhausted);
  EXPECT_FALSE(fs::exists(Path("model")));
}

// Stands for a disk that fills up meanwhile: the system refuses to let a file grow.
TEST_F(SynthesizeTest, RemovesWhatItWroteWhenWritingFails) {
  const std::string config = Config(kMixtral);
  fs::create_directories(Path("existing"));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit = {.rlim_cur = 150'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto summary = Synthesize(config, Path("model"), {.max_shard_bytes = 120'000}, {});
  const auto whole = Synthesize(config, Path("model"), {}, {});
  const auto existing = Synthesize(config, Path("existing"), {}, {});
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(summary) << summary.error().message;  // shards are small enough
  EXPECT_FALSE(whole);                              // the directory is not empty
  ASSERT_FALSE(existing);
  EXPECT_NE(existing.error().message.find("model.safetensors"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(Path("existing")));
}

TEST_F(SynthesizeTest, RefusesConfigurationsItCannotUse) {
  EXPECT_FALSE(Synthesize(Path("missing.json"), Path("model"), {}, {}));
  EXPECT_FALSE(Synthesize(Config(R"({"model_type": "gpt2"})"), Path("model"), {}, {}));
  EXPECT_FALSE(Synthesize(Config(kMixtral), Path("model"), {.num_layers = 1'000'000}, {}));
  EXPECT_FALSE(fs::exists(Path("model")));
}

// A plain forward pass over distinct tokens in which every token attends evenly to all before it,
// the worst case for hidden states that should stay different. Returns, over all layers, how often
// the most chosen expert was chosen, relative to the average.
class Routing {
 public:
  explicit Routing(const Checkpoint& checkpoint) : spec_(checkpoint.spec()) {
    for (const model::TensorBinding& binding : spec_.tensors) {
      const TensorView view = checkpoint.View(binding);
      Matrix matrix = {binding.rows, binding.cols, {}};
      matrix.values.resize(static_cast<size_t>(binding.rows * binding.cols));
      tensor::ConvertToFloat(view.dtype, view.bytes.data(), matrix.values.size(),
                             matrix.values.data());
      matrices_[{binding.role, binding.layer, binding.expert}] = std::move(matrix);
    }
  }

  double Imbalance(int num_tokens) {
    const Matrix& embedding = matrices_.at({TensorRole::kEmbedding, -1, -1});
    std::vector<Row> hidden;
    for (int token = 0; token < num_tokens; ++token) {
      const auto* begin = embedding.values.data() + token * embedding.cols;
      hidden.emplace_back(begin, begin + embedding.cols);
    }
    double worst = 0;
    for (int layer = 0; layer < spec_.num_layers(); ++layer) {
      Attend(layer, hidden);
      worst = std::max(worst, FeedForward(layer, hidden));
    }
    return worst;
  }

 private:
  using Row = std::vector<float>;
  struct Matrix {
    int64_t rows, cols;
    Row values;
  };

  static Row Multiply(const Matrix& matrix, const Row& x) {
    Row y(static_cast<size_t>(matrix.rows));
    for (int64_t row = 0; row < matrix.rows; ++row) {
      for (int64_t col = 0; col < matrix.cols; ++col) {
        y[row] += matrix.values[row * matrix.cols + col] * x[col];
      }
    }
    return y;
  }
  static Row Norm(Row x) {
    float squares = 0;
    for (const float value : x) squares += value * value;
    for (float& value : x) value /= std::sqrt(squares / static_cast<float>(x.size()));
    return x;
  }
  static void Add(Row& x, const Row& y, float factor) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += factor * y[i];
  }

  // As many key/value heads as heads.
  void Attend(int layer, std::vector<Row>& hidden) {
    Row sum(hidden[0].size());
    float count = 0;
    for (Row& x : hidden) {
      Add(sum, Multiply(matrices_.at({TensorRole::kValue, layer, -1}), Norm(x)), 1);
      Add(x, Multiply(matrices_.at({TensorRole::kAttentionOutput, layer, -1}), sum), 1 / ++count);
    }
  }

  double FeedForward(int layer, std::vector<Row>& hidden) {
    std::vector<int> counts(spec_.layers[layer].moe->num_experts);
    for (Row& residual : hidden) {
      const Row x = Norm(residual);
      const Row scores = Multiply(matrices_.at({TensorRole::kRouter, layer, -1}), x);
      const auto chosen =
          static_cast<int>(std::max_element(scores.begin(), scores.end()) - scores.begin());
      ++counts[chosen];
      Row inner = Multiply(matrices_.at({TensorRole::kExpertGate, layer, chosen}), x);
      const Row up = Multiply(matrices_.at({TensorRole::kExpertUp, layer, chosen}), x);
      for (size_t i = 0; i < inner.size(); ++i) inner[i] *= up[i] / (1 + std::exp(-inner[i]));
      Add(residual, Multiply(matrices_.at({TensorRole::kExpertDown, layer, chosen}), inner), 1);
    }
    const double average = static_cast<double>(hidden.size()) / static_cast<double>(counts.size());
    return *std::max_element(counts.begin(), counts.end()) / average;
  }

  const model::ModelSpec& spec_;
  std::map<std::tuple<TensorRole, int, int>, Matrix> matrices_;
};

TEST_F(SynthesizeTest, RoutingIsCloseToUniform) {
  const std::string config =
      Config(R"({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 64,
                 "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 4,
                 "num_local_experts": 8, "num_experts_per_tok": 1, "vocab_size": 400})");
  ASSERT_TRUE(Synthesize(config, Path("scaled"), {.seed = 1}, {}));
  ASSERT_TRUE(Synthesize(config, Path("plain"), {.seed = 1, .embedding_std = 0.02f}, {}));
  const auto scaled = Checkpoint::Open(Path("scaled"));
  const auto plain = Checkpoint::Open(Path("plain"));
  ASSERT_TRUE(scaled);
  ASSERT_TRUE(plain);
  // 50 of 400 tokens per expert on average: 1.7 is 5 standard deviations of a fair choice.
  EXPECT_LT(Routing(*scaled).Imbalance(400), 1.7);
  EXPECT_GT(Routing(*plain).Imbalance(400), 3);
}

}  // namespace
}  // namespace convene::checkpoint
