#include "engine/same_model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "comm/threads/thread_group.h"

namespace convene::engine {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A copy of a model for each of three ranks.
class SameModelTest : public testing::Test {
 protected:
  static constexpr int kRanks = 3;

  void SetUp() override {
    for (int rank = 0; rank < kRanks; ++rank) {
      const fs::path copy = Copy(rank);
      fs::remove_all(copy);
      fs::create_directories(copy / "additional_chat_templates");
      Write(rank, "config.json", R"({"model_type": "mixtral", "rope_theta": 10000.0})");
      for (const char* name : kOthers) Write(rank, name, "{}");
    }
  }
  void TearDown() override {
    for (int rank = 0; rank < kRanks; ++rank) fs::remove_all(Copy(rank));
  }

  fs::path Copy(int rank) const {
    return fs::path(testing::TempDir()) / fmt::format("same_model_{}_{}", getpid(), rank);
  }
  void Write(int rank, const std::string& name, const std::string& content) const {
    std::ofstream(Copy(rank) / name) << content;
  }

  // The error, which must be that of all ranks; empty: they agree.
  std::string Compared() const {
    std::mutex mutex;
    std::vector<std::string> messages;
    comm::RunOnThreads(kRanks, [&](comm::Group& group) {
      const Status same = AgreeOnFiles(group, Copy(group.rank()).string());
      const std::scoped_lock lock(mutex);
      messages.push_back(same ? "" : same.error().message);
    });
    for (const std::string& message : messages) EXPECT_EQ(message, messages.front());
    return messages.front();
  }

  static constexpr const char* kOthers[] = {"generation_config.json",
                                            "convene.json",
                                            "tokenizer.json",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "vocab.json",
                                            "merges.txt",
                                            "chat_template.jinja",
                                            "additional_chat_templates/tool_use.jinja"};
};

TEST_F(SameModelTest, EqualCopiesAreAgreedOn) {
  EXPECT_EQ(Compared(), "");
  // What is not read may differ.
  Write(1, "README.md", "a note");
  Write(2, "training_args.json", "{}");
  EXPECT_EQ(Compared(), "");
}

TEST_F(SameModelTest, EveryFileThatIsReadIsComparedWhole) {
  Write(2, "config.json", R"({"model_type": "mixtral", "rope_theta": 10001.0})");
  EXPECT_THAT(Compared(), AllOf(HasSubstr("file \"config.json\" differs between ranks: rank 2"),
                                HasSubstr("another copy")));
  Write(2, "config.json", R"({"model_type": "mixtral", "rope_theta": 10000.0})");
  for (const char* name : kOthers) {
    Write(1, name, "{ }");
    EXPECT_THAT(Compared(),
                HasSubstr(fmt::format("file \"{}\" differs between ranks: rank 1", name)));
    fs::remove(Copy(1) / name);
    EXPECT_THAT(Compared(), AllOf(HasSubstr(name), HasSubstr("rank 1"), HasSubstr("has none")));
    Write(1, name, "{}");
  }
  EXPECT_EQ(Compared(), "");
}

TEST_F(SameModelTest, ADirectoryThatIsNoneIsNamed) {
  fs::remove_all(Copy(1));
  EXPECT_THAT(Compared(), AllOf(HasSubstr("rank 1"), HasSubstr(Copy(1).string())));
}

TEST(SameFiles, AreToldApartFromEqualOnes) {
  comm::RunOnThreads(2, [](comm::Group& group) {
    EXPECT_TRUE(HaveSameFiles(group, "device 1 inode 2"));
    EXPECT_FALSE(HaveSameFiles(group, fmt::format("device 1 inode {}", group.rank())));
  });
}

}  // namespace
}  // namespace convene::engine
