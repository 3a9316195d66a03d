#include "weights/stored_matrix.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/read_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/synthesize.h"
#include "hardware/thread_pool.h"
#include "kernels/pack.h"
#include "weights/load_weights.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;
using model::TensorRole;

class StoredMatrixTest : public testing::Test {
 protected:
  StoredMatrixTest() : root_(fs::path(testing::TempDir()) / fmt::format("stored_{}", getpid())) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~StoredMatrixTest() override { fs::remove_all(root_); }

  // A small gpt_oss with random weights.
  std::string Write(bool mxfp4) const {
    std::string config = R"({"model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 96,
        "head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
        "num_local_experts": 5, "vocab_size": 40)";
    config += mxfp4 ? R"(, "quantization_config": {"quant_method": "mxfp4"}})" : "}";
    std::ofstream(root_ / "config.json") << config;
    const std::string directory = (root_ / "model").string();
    const auto summary =
        checkpoint::Synthesize((root_ / "config.json").string(), directory, {}, {});
    CHECK(summary.ok(), "{}", summary.error().message);
    return directory;
  }

  static const model::TensorBinding& Find(const checkpoint::Checkpoint& checkpoint, TensorRole role,
                                          int expert) {
    const auto& tensors = checkpoint.spec().tensors;
    return *std::find_if(tensors.begin(), tensors.end(), [&](const auto& binding) {
      return binding.role == role && binding.expert == expert;
    });
  }

  fs::path root_;
};

TEST_F(StoredMatrixTest, GateAndUpTakeTurnsInColumnsOfATransposedTensor) {
  const auto checkpoint = checkpoint::Checkpoint::Open(Write(/*mxfp4=*/false));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto& gate = Find(*checkpoint, TensorRole::kExpertGate, 3);
  const auto& up = Find(*checkpoint, TensorRole::kExpertUp, 3);
  const std::vector<float> gate_values = ToFloats(StoredMatrixOf(*checkpoint, gate));
  const std::vector<float> up_values = ToFloats(StoredMatrixOf(*checkpoint, up));
  const checkpoint::TensorView stored = checkpoint->View(up);  // (hidden, 2 * intermediate)
  ASSERT_EQ(stored.rows, 64);
  ASSERT_EQ(stored.cols, 192);
  for (int row = 0; row < 96; ++row) {
    for (int col = 0; col < 64; ++col) {
      const auto at = [&](int output) {
        return tensor::LoadElement(stored.dtype, stored.bytes.data(), col * 192 + output);
      };
      ASSERT_EQ(gate_values[row * 64 + col], at(2 * row));
      ASSERT_EQ(up_values[row * 64 + col], at(2 * row + 1));
    }
  }
}

TEST_F(StoredMatrixTest, Mxfp4RowsTakeTurnsToo) {
  const auto checkpoint = checkpoint::Checkpoint::Open(Write(/*mxfp4=*/true));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto& up = Find(*checkpoint, TensorRole::kExpertUp, 4);
  const std::vector<float> values = ToFloats(StoredMatrixOf(*checkpoint, up));
  const checkpoint::TensorView stored = checkpoint->View(up);  // (2 * intermediate, hidden)
  ASSERT_EQ(stored.rows, 192);
  for (int row = 0; row < 96; ++row) {
    for (int col = 0; col < 64; ++col) {
      const int stored_row = 2 * row + 1;
      ASSERT_EQ(values[row * 64 + col],
                tensor::LoadElement(stored.dtype, stored.bytes.data(), stored_row * 64 + col) *
                    stored.scales.At(up.first_row + stored_row, col));
    }
  }
}

TEST_F(StoredMatrixTest, LoadsBiasesInTheOrderOfThePackedRows) {
  const std::string directory = Write(/*mxfp4=*/true);
  // Biases are written as zeros; here each is its place.
  const std::string path = directory + "/model.safetensors";
  std::string file = *ReadFile(path, 1 << 30);
  const auto tensors = checkpoint::ParseSafetensors(std::as_bytes(std::span(file)), file.size());
  ASSERT_TRUE(tensors);
  for (const checkpoint::StoredTensor& tensor : *tensors) {
    if (!tensor.name.ends_with("gate_up_proj_bias")) continue;
    for (uint64_t i = 0; i < tensor.size_bytes / 2; ++i) {
      const tensor::Bf16 bits = tensor::Bf16FromFloat(static_cast<float>(i % 192));
      std::memcpy(&file[tensor.offset + 2 * i], &bits, 2);
    }
  }
  std::ofstream(path, std::ios::binary) << file;
  const auto checkpoint = checkpoint::Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  const auto weights =
      LoadWeights(*checkpoint, {}, Share{}, hardware::NumaPolicy::kAuto, pool, ledger, {});
  ASSERT_TRUE(weights) << weights.error().message;
  const std::vector<float>& bias = weights->layers[0].moe->experts[4].up_bias;
  ASSERT_EQ(std::ssize(bias), kernels::GateUpRows(96));
  for (int row = 0; row < std::ssize(bias); ++row) {
    const kernels::GateUpRow at = kernels::GateUpRowAt(96, row);
    EXPECT_EQ(bias[row], static_cast<float>(2 * at.row + (at.is_up ? 1 : 0)));
  }
  EXPECT_EQ(std::ssize(weights->layers[0].moe->experts[4].down_bias), 64);
  EXPECT_EQ(std::ssize(weights->layers[0].moe->router_bias), 5);
}

TEST_F(StoredMatrixTest, RefusesScalesThatAreNotNumbers) {
  const std::string directory = Write(/*mxfp4=*/true);
  const std::string path = directory + "/model.safetensors";
  std::string file = *ReadFile(path, 1 << 30);
  const auto tensors = checkpoint::ParseSafetensors(std::as_bytes(std::span(file)), file.size());
  ASSERT_TRUE(tensors);
  for (const checkpoint::StoredTensor& tensor : *tensors) {
    if (tensor.name.ends_with("down_proj_scales")) {
      file[tensor.offset + tensor.size_bytes - 1] = '\xff';
    }
  }
  std::ofstream(path, std::ios::binary) << file;
  const auto checkpoint = checkpoint::Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  const auto weights =
      LoadWeights(*checkpoint, {}, Share{}, hardware::NumaPolicy::kAuto, pool, ledger, {});
  ASSERT_FALSE(weights);
  EXPECT_THAT(weights.error().message, testing::HasSubstr("experts.down_proj"));
  EXPECT_THAT(weights.error().message, testing::HasSubstr("a scale of"));
}

}  // namespace
}  // namespace convene::weights
