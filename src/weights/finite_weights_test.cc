#include "weights/finite_weights.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/quote.h"
#include "base/read_file.h"
#include "checkpoint/model_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/stored_parts.h"
#include "hardware/thread_pool.h"
#include "weights/load_weights.h"
#include "weights/pack_directory.h"
#include "weights/packed_directory.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A copy of a fixture, of which elements can be overwritten.
class FiniteWeightsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / fmt::format("finite_{}_{}", GetParam(), getpid());
    fs::remove_all(root_);
    fs::create_directories(root_);
    fs::copy(fs::path(CONVENE_SOURCE_DIR "/tests/golden/models") / GetParam(), root_ / "model",
             fs::copy_options::recursive);
    const auto names = checkpoint::FindWeightFiles(model());
    for (const std::string& name : *names) {
      for (const checkpoint::StoredTensor& tensor : TensorsOf(model() + "/" + name)) {
        places_[tensor.name] = {model() + "/" + name, tensor};
      }
    }
  }
  void TearDown() override { fs::remove_all(root_); }
  static std::vector<checkpoint::StoredTensor> TensorsOf(const std::string& path) {
    const std::string bytes = *ReadFile(path, uint64_t{1} << 30);
    return *checkpoint::ParseSafetensors(std::as_bytes(std::span(bytes)), bytes.size());
  }
  std::string model() const { return (root_ / "model").string(); }

  struct Place {
    std::string path;
    checkpoint::StoredTensor tensor;
  };

  // The last element of a tensor becomes `value`, NaN or infinite; returns what it was.
  std::string Poke(const std::string& tensor_name, float value) {
    const auto& [path, tensor] = places_.at(tensor_name);
    const bool is_nan = value != value;
    std::string bytes;
    if (tensor.dtype == "F32") {
      bytes.resize(4);
      std::memcpy(bytes.data(), &value, 4);
    } else if (tensor.dtype == "BF16") {
      const tensor::Bf16 bits = tensor::Bf16FromFloat(value);
      bytes.resize(2);
      std::memcpy(bytes.data(), &bits, 2);
    } else if (tensor.dtype == "F16") {
      bytes = {'\0', is_nan ? '\x7e' : value > 0 ? '\x7c' : '\xfc'};
    } else {
      bytes = {tensor.dtype == "U8" ? '\xff' : '\x7f'};
    }
    return Overwrite(path, tensor.offset + tensor.size_bytes - bytes.size(), bytes);
  }
  void Restore(const std::string& tensor_name, const std::string& bytes) {
    const auto& [path, tensor] = places_.at(tensor_name);
    Overwrite(path, tensor.offset + tensor.size_bytes - bytes.size(), bytes);
  }

  static std::string Overwrite(const std::string& path, uint64_t offset, const std::string& bytes) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    std::string before(bytes.size(), '\0');
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(before.data(), std::ssize(before));
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(bytes.data(), std::ssize(bytes));
    return before;
  }

  Result<ModelWeights> Load(kernels::WeightFormat format) {
    const auto checkpoint = checkpoint::Checkpoint::Open(model());
    if (!checkpoint) return checkpoint.error();
    hardware::ThreadPool pool({0});
    return LoadWeights(*checkpoint, {.matrices = format}, Share{}, hardware::NumaPolicy::kAuto,
                       pool, ledger_, {});
  }

  fs::path root_;
  memory::Ledger ledger_;
  std::map<std::string, Place> places_;
};

INSTANTIATE_TEST_SUITE_P(Fixtures, FiniteWeightsTest,
                         testing::Values("olmoe_plain", "deepseek_v3_fp8", "gpt_oss_mxfp4",
                                         "gpt_oss_plain", "dbrx_plain", "switch_untied"),
                         [](const auto& fixture) { return std::string(fixture.param); });

TEST_P(FiniteWeightsTest, ATensorOfEveryRoleIsRefusedByName) {
  const auto whole = checkpoint::Checkpoint::Open(model());
  ASSERT_TRUE(whole) << whole.error().message;
  std::map<model::TensorRole, model::TensorBinding> last_of_role;
  for (const model::TensorBinding& binding : whole->spec().tensors) {
    last_of_role[binding.role] = binding;
  }
  ASSERT_GE(last_of_role.size(), 12u);
  for (const auto& [role, binding] : last_of_role) {
    // The halves of bytes of MXFP4 are all numbers; its scales are not.
    const auto parts = checkpoint::PartsOf(binding);
    const std::string name =
        binding.storage == model::Storage::kMxfp4 ? parts[1].name : parts[0].name;
    const std::string before = Poke(name, std::nanf(""));
    for (const auto format : {kernels::WeightFormat::kBf16, kernels::WeightFormat::kInt4}) {
      const Result<ModelWeights> weights = Load(format);
      ASSERT_FALSE(weights) << name << " in " << kernels::Name(format);
      EXPECT_THAT(weights.error().message, HasSubstr(Quote(binding.name)));
      EXPECT_THAT(weights.error().message, HasSubstr("NaN"));
    }
    Restore(name, before);
  }
  EXPECT_TRUE(Load(kernels::WeightFormat::kBf16).ok());
}

TEST_P(FiniteWeightsTest, InfinityIsRefusedWhereItDoesNotMeanNever) {
  const auto whole = checkpoint::Checkpoint::Open(model());
  ASSERT_TRUE(whole) << whole.error().message;
  for (const model::TensorBinding& binding : whole->spec().tensors) {
    using enum model::TensorRole;
    const bool may_mask =
        binding.role == kSinks || binding.role == kRouterBias || binding.role == kCorrectionBias;
    if (binding.layer > 0 || (!may_mask && binding.role != kFfnNorm && binding.role != kRouter)) {
      continue;
    }
    const std::string before = Poke(binding.name, -HUGE_VALF);
    EXPECT_EQ(Load(kernels::WeightFormat::kBf16).ok(), may_mask) << binding.name;
    Poke(binding.name, HUGE_VALF);
    EXPECT_FALSE(Load(kernels::WeightFormat::kBf16).ok()) << binding.name;
    Restore(binding.name, before);
  }
}

TEST_P(FiniteWeightsTest, ScalesOfPackedMatricesAreFoundByName) {
  for (const auto format : {kernels::WeightFormat::kBf16, kernels::WeightFormat::kInt8}) {
    Result<ModelWeights> weights = Load(format);
    ASSERT_TRUE(weights) << weights.error().message;
    EXPECT_EQ(FindNotFinite(*weights), std::nullopt);
    const kernels::PackedMatrix& matrix = weights->layers.front().output;
    const kernels::PackedPanel panel = matrix.panel(0);
    auto* bytes = const_cast<std::byte*>(panel.data);
    // The first row's scale, or the first columns.
    std::memset(bytes + (kernels::IsInteger(format) ? panel.values_bytes() : 0), 0xff, 4);
    EXPECT_EQ(FindNotFinite(*weights), "layers.0.output (row 0)");
  }
}

TEST_P(FiniteWeightsTest, ANormThatWasPackedAheadIsRefusedByName) {
  const auto checkpoint = checkpoint::Checkpoint::Open(model());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const std::string packed = (root_ / "packed").string();
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  const auto written = PackDirectory(*checkpoint, {.matrices = kernels::WeightFormat::kInt8},
                                     {.directory = packed}, pool, ledger, {});
  ASSERT_TRUE(written) << written.error().message;
  const std::string path = packed + "/convene.safetensors";
  for (const checkpoint::StoredTensor& tensor : TensorsOf(path)) {
    if (tensor.name != "layers.0.ffn_norm") continue;
    Overwrite(path, tensor.offset, std::string("\0\0\xc0\x7f", 4));
  }
  auto opened = OpenPackedDirectory(packed);
  ASSERT_TRUE(opened) << opened.error().message;
  const Result<ModelWeights> mapped = MapWeights(*std::move(opened), ledger_);
  ASSERT_FALSE(mapped);
  EXPECT_THAT(mapped.error().message, HasSubstr("\"layers.0.ffn_norm\" holds NaN"));
}

}  // namespace
}  // namespace convene::weights
