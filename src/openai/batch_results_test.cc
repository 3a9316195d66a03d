#include "openai/batch_results.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

namespace convene::openai {
namespace {

class BatchResultsTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/batch_results_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void Write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string Read() {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string path_;
};

const std::string kFirst = R"({"id":"batch_req_1","custom_id":"a","response":null,"error":null})"
                           "\n";
const std::string kSecond = R"({"id":"batch_req_2","custom_id":"b\n","response":null,"error":null})"
                            "\n";

TEST_F(BatchResultsTest, GoesOnBehindALineTornAtAnyByte) {
  for (size_t cut = 0; cut < kSecond.size(); ++cut) {
    Write(kFirst + kSecond.substr(0, cut));
    {
      Result<BatchResults> results = BatchResults::Open(path_);
      ASSERT_TRUE(results.ok()) << results.error().message;
      EXPECT_EQ(results->earlier().finished, std::multiset<std::string>{"a"});
      ASSERT_TRUE(results->Append({{"custom_id", "c"}, {"error", nullptr}}).ok());
      ASSERT_TRUE(results->Close().ok());
    }
    ASSERT_EQ(Read(), kFirst + R"({"custom_id":"c","error":null})"
                               "\n")
        << "cut at " << cut;
  }
}

const std::string kRefused = R"({"id":"batch_req_3","custom_id":"c","response":null,"error":{}})"
                             "\n";
const std::string kWithoutId = R"({"custom_id":null,"error":{"line":7,"message":"line 7"}})"
                               "\n";

TEST_F(BatchResultsTest, TellsWhatWasAnsweredFromWhatWasRefused) {
  Write(kWithoutId + kSecond + kRefused);
  const Result<BatchResults> results = BatchResults::Open(path_);
  ASSERT_TRUE(results.ok()) << results.error().message;
  EXPECT_EQ(results->earlier().finished, std::multiset<std::string>{"b\n"});
  ASSERT_EQ(results->earlier().refused.size(), 2u);
  EXPECT_EQ(results->earlier().refused[0].custom_id, std::nullopt);
  EXPECT_EQ(results->earlier().refused[0].line, 7);
  EXPECT_EQ(results->earlier().refused[1].custom_id, "c");
  EXPECT_EQ(Read(), kWithoutId + kSecond + kRefused) << "only Forget takes lines out";
}

TEST_F(BatchResultsTest, ForgetsRefusalsAndNothingElse) {
  Write(kFirst + kRefused + kSecond + kWithoutId + kRefused.substr(0, 20));
  std::filesystem::permissions(path_, std::filesystem::perms(0640));
  const std::string link = path_ + "_link";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(path_, link);
  {
    Result<BatchResults> results = BatchResults::Open(link);
    ASSERT_TRUE(results.ok()) << results.error().message;
    const auto has_id = [](const RefusedRequest& refused) { return refused.custom_id.has_value(); };
    ASSERT_TRUE(results->Forget(has_id).ok());
    EXPECT_EQ(Read(), kFirst + kSecond + kWithoutId);
    EXPECT_FALSE(BatchResults::Open(path_).ok()) << "the new file is locked, too";
    ASSERT_TRUE(results->Append({{"custom_id", "c"}, {"error", nullptr}}).ok());
    ASSERT_TRUE(results->Close().ok());
  }
  EXPECT_EQ(Read(), kFirst + kSecond + kWithoutId +
                        R"({"custom_id":"c","error":null})"
                        "\n");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(std::filesystem::status(path_).permissions(), std::filesystem::perms(0640));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".rewriting"));
  std::filesystem::remove(link);
}

TEST_F(BatchResultsTest, ForgetsTheFirstAndTheLastLine) {
  for (const std::string& text : {kRefused, kRefused + kRefused, kRefused + kFirst + kRefused}) {
    Write(text);
    Result<BatchResults> results = BatchResults::Open(path_);
    ASSERT_TRUE(results.ok()) << results.error().message;
    ASSERT_TRUE(results->Forget([](const RefusedRequest&) { return true; }).ok());
    EXPECT_EQ(Read(), text == kRefused || text == kRefused + kRefused ? "" : kFirst);
  }
}

TEST_F(BatchResultsTest, LeavesAForeignFileAlone) {
  const std::string request = R"({"custom_id":"a","url":"/v1/completions","body":{}})";
  for (const std::string& text : {std::string("my notes\n"), std::string("my notes\nmore\n"),
                                  std::string("my notes"), request, request + "\n"}) {
    Write(text);
    const Result<BatchResults> results = BatchResults::Open(path_);
    ASSERT_FALSE(results.ok());
    EXPECT_NE(results.error().message.find("something else"), std::string::npos);
    EXPECT_EQ(Read(), text);
  }
}

TEST_F(BatchResultsTest, RefusesAFileThatAnotherRunIsWriting) {
  Write(kFirst);
  {
    Result<BatchResults> first = BatchResults::Open(path_);
    ASSERT_TRUE(first.ok()) << first.error().message;
    const Result<BatchResults> second = BatchResults::Open(path_);
    ASSERT_FALSE(second.ok());
    EXPECT_NE(second.error().message.find("another run"), std::string::npos);
    ASSERT_TRUE(first->Append({{"custom_id", "c"}, {"error", nullptr}}).ok());
    ASSERT_TRUE(first->Close().ok());
    EXPECT_TRUE(BatchResults::Open(path_).ok());
  }
  EXPECT_EQ(Read(), kFirst + R"({"custom_id":"c","error":null})"
                             "\n");
}

TEST_F(BatchResultsTest, SaysThatTheDiskIsFull) {
  Result<BatchResults> results = BatchResults::Open("/dev/full");
  ASSERT_TRUE(results.ok()) << results.error().message;
  const Status written = results->Append({{"custom_id", "a"}});
  ASSERT_FALSE(written.ok());
  EXPECT_NE(written.error().message.find("No space left"), std::string::npos);
}

}  // namespace
}  // namespace convene::openai
