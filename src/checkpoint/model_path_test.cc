#include "checkpoint/model_path.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace convene::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ModelPathTest : public testing::Test {
 protected:
  ModelPathTest() : root_(fs::path(testing::TempDir()) / fmt::format("model_path_{}", getpid())) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~ModelPathTest() override { fs::remove_all(root_); }

  std::string File(const std::string& name) const {
    std::ofstream(root_ / name) << "content";
    return (root_ / name).string();
  }
  static std::string MessageOf(const std::string& path) {
    const Status checked = CheckModelPath(path);
    return checked ? "" : checked.error().message;
  }

  fs::path root_;
};

TEST_F(ModelPathTest, TellsHowToGetAModelOfTheHub) {
  EXPECT_THAT(MessageOf("mistralai/Mixtral-8x7B-v0.1"),
              HasSubstr("hf download mistralai/Mixtral-8x7B-v0.1 --local-dir Mixtral-8x7B-v0.1"));
  for (const char* path :
       {"/nonexistent", "./a/b", "../no such", "a/b/c", "nonexistent", "", "a/"}) {
    EXPECT_THAT(MessageOf(path), HasSubstr("there is no directory")) << path;
    EXPECT_THAT(MessageOf(path), ::testing::Not(HasSubstr("hub"))) << path;
    EXPECT_EQ(CheckModelPath(path).error().kind, ErrorKind::kNotFound) << path;
  }
}

TEST_F(ModelPathTest, SaysOfFilesWhatTheyAre) {
  EXPECT_THAT(MessageOf(File("model.Q4_K_M.gguf")), HasSubstr("is GGUF"));
  EXPECT_THAT(MessageOf(root_.string()), HasSubstr("is GGUF"));
  EXPECT_THAT(MessageOf(File("model.safetensors")), HasSubstr("is a file"));
  EXPECT_EQ(MessageOf(File("config.json")), "");
}

TEST_F(ModelPathTest, WantsSomethingOfAModelInADirectory) {
  EXPECT_THAT(MessageOf(root_.string()), HasSubstr("has no config.json"));
  File("tokenizer.json");
  EXPECT_EQ(MessageOf(root_.string()), "");
}

TEST_F(ModelPathTest, SaysWhyAPathCannotBeFollowed) {
  fs::create_symlink(root_ / "loop", root_ / "loop");
  EXPECT_THAT(MessageOf((root_ / "loop").string()), HasSubstr("Too many levels"));
}

}  // namespace
}  // namespace convene::checkpoint
