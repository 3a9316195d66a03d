#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

namespace convene::checkpoint {
namespace {

// A file with this header (its length is put before it) and `data_size` bytes of data.
std::string File(std::string_view header, size_t data_size) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  file += header;
  file.append(data_size, '\x7f');
  return file;
}

Result<std::vector<StoredTensor>> Parse(const std::string& file) {
  return ParseSafetensors(std::as_bytes(std::span(file)), file.size());
}

std::string ErrorOf(std::string_view header, size_t data_size) {
  const auto tensors = Parse(File(header, data_size));
  return tensors ? "" : tensors.error().message;
}

void ExpectError(std::string_view header, size_t data_size, std::string_view part) {
  const std::string message = ErrorOf(header, data_size);
  EXPECT_NE(message.find(part), std::string::npos) << header << " gives: " << message;
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string_view header = R"({"__metadata__": {"format": "pt", "dtype": "x"},
      "b": {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]},
      "a": {"shape": [2, 3], "data_offsets": [0, 12], "dtype": "BF16"},
      "scalar": {"dtype": "U8", "shape": [], "data_offsets": [20, 21]},
      "empty": {"dtype": "F32", "shape": [0, 5], "data_offsets": [12, 12]}}   )";
  const auto tensors = Parse(File(header, 21));
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 4u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].dtype, "BF16");
  EXPECT_EQ((*tensors)[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((*tensors)[0].offset, 8 + header.size());
  EXPECT_EQ((*tensors)[0].size_bytes, 12u);
  EXPECT_EQ((*tensors)[1].name, "empty");
  EXPECT_EQ((*tensors)[2].name, "b");
  EXPECT_EQ((*tensors)[2].offset, 8 + header.size() + 12);
  EXPECT_EQ((*tensors)[3].name, "scalar");
}

TEST(Safetensors, ReadsAFileWithoutTensors) { EXPECT_EQ(ErrorOf("{}", 0), ""); }

TEST(Safetensors, ReadsItsOwnPrefix) {
  const std::vector<StoredTensor> stored = {{.name = "x\"\n", .dtype = "BF16", .shape = {3, 2}},
                                            {.name = "y", .dtype = "F32", .shape = {4}}};
  const std::string prefix = SafetensorsPrefix(stored);
  EXPECT_EQ(prefix.size() % 64, 0u);
  const auto tensors = Parse(prefix + std::string(12 + 16, '\0'));
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_EQ((*tensors)[0].name, "x\"\n");
  EXPECT_EQ((*tensors)[1].offset, prefix.size() + 12);
  EXPECT_EQ((*tensors)[1].size_bytes, 16u);
}

TEST(Safetensors, RefusesFilesThatAreCut) {
  EXPECT_FALSE(Parse(""));
  EXPECT_FALSE(Parse("1234567"));
  const std::string file =
      File(R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})", 16);
  ASSERT_TRUE(Parse(file));
  for (size_t size = 0; size < file.size(); ++size) {
    const auto cut = Parse(file.substr(0, size));
    ASSERT_FALSE(cut) << size;
    EXPECT_EQ(cut.error().kind, ErrorKind::kDataLoss) << size;
  }
  EXPECT_NE(ErrorOf(R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})", 15)
                .find("cut short"),
            std::string::npos);
}

TEST(Safetensors, RefusesHeadersLongerThanTheFileOrTheLimit) {
  std::string file = File("{}", 0);
  file[0] = 3;
  EXPECT_NE(Parse(file).error().message.find("3 bytes long, but the file ends after 2"),
            std::string::npos);
  file.replace(0, 8, 8, '\xff');
  EXPECT_NE(Parse(file).error().message.find("is this a safetensors file?"), std::string::npos);
  const uint64_t above_limit = kMaxHeaderBytes + 1;
  std::memcpy(file.data(), &above_limit, 8);
  EXPECT_NE(Parse(file).error().message.find("at most 100000000"), std::string::npos);
}

TEST(Safetensors, RefusesBytesBehindTheLastTensor) {
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})", 6,
              "2 bytes follow the last tensor");
  ExpectError("{}", 1, "1 bytes follow");
}

TEST(Safetensors, RefusesOverlapsAndHoles) {
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                  "b": {"dtype": "U8", "shape": [4], "data_offsets": [3, 7]}})",
              7, "tensors overlap");
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                  "b": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})",
              4, "tensors overlap");
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                  "b": {"dtype": "U8", "shape": [4], "data_offsets": [5, 9]}})",
              9, "leave a hole");
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}})", 6, "hole");
}

TEST(Safetensors, RefusesShapesThatDoNotFitTheirBytes) {
  ExpectError(R"({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 20]}})", 20,
              "\"a\" is F32 [2, 3], which does not fit its 20 bytes");
  // Products that wrap around to the right size.
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4294967296, 4294967296, 1],
                  "data_offsets": [0, 0]}})",
              0, "does not fit");
  ExpectError(R"({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}})", 1, "does not fit");
}

TEST(Safetensors, RefusesBadOffsets) {
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [4, 0]}})", 4,
              "not [begin, end]");
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0]}})", 4,
              "not [begin, end]");
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 8]}})", 4, "a number");
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [-1, 4]}})", 4, "negative");
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4],
                  "data_offsets": [0, 18446744073709551615]}})",
              4, "cut short");
  ExpectError(R"({"a": {"dtype": "U8", "shape": [4],
                  "data_offsets": [0, 18446744073709551616]}})",
              4, "a fraction");
}

TEST(Safetensors, RefusesATensorThatIsThereTwice) {
  ExpectError(R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                  "a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}})",
              2, "\"a\" is there twice");
}

TEST(Safetensors, RefusesUnknownDtypes) {
  ExpectError(R"({"a": {"dtype": "Q4_K", "shape": [1], "data_offsets": [0, 1]}})", 1,
              "unknown dtype \"Q4_K\"");
}

TEST(Safetensors, RefusesHeadersOfAnotherForm) {
  for (const char* header :
       {"",
        "[]",
        " {}",
        "{",
        "{}}",
        "null",
        R"({"a": 1})",
        R"({"a": []})",
        R"({"a": {}})",
        R"({"a": "text"})",
        R"({"a": null})",
        R"({"a": {"dtype": 5}})",
        R"({"a": {"dtype": "U8", "shape": [1]}})",
        R"({"a": {"dtype": "U8", "data_offsets": [0, 0]}})",
        R"({"a": {"shape": [0], "data_offsets": [0, 0]}})",
        R"({"a": {"dtype": "U8", "shape": 0, "data_offsets": [0, 0]}})",
        R"({"a": {"dtype": "U8", "shape": [0.5], "data_offsets": [0, 0]}})",
        R"({"a": {"dtype": "U8", "shape": [[0]], "data_offsets": [0, 0]}})",
        R"({"a": {"dtype": "U8", "shape": [0], "shape": [0], "data_offsets": [0, 0]}})",
        R"({"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0], "more": {}}})",
        R"({"__metadata__": []})",
        R"({"__metadata__": {"a": {}}})",
        "{\"\xff\": {}}"}) {
    EXPECT_NE(ErrorOf(header, 0), "") << header;
  }
}

TEST(Safetensors, DeepNestingAndManyDimensionsCostNothing) {
  ExpectError("{\"a\":" + std::string(1 << 20, '['), 0, "an array");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  ExpectError(objects, 0, "an object");
  std::string ones = "1";
  for (int i = 0; i < 100000; ++i) ones += ",1";
  ExpectError("{\"a\": {\"dtype\": \"U8\", \"shape\": [" + ones + "], \"data_offsets\": [0, 1]}}",
              1, "dimension");
}

TEST(Safetensors, KeepsMessagesPrintable) {
  const std::string message = ErrorOf(R"({"\u001b[2Jx": 1})", 0);
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_NE(message, "");
}

}  // namespace
}  // namespace convene::checkpoint
