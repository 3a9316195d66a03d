// What the tests of commands share: a small model with a tokenizer of single characters, and a
// command line as a user gives it.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/read_file.h"
#include "cli/command_line.h"

namespace convene::cli {

namespace fs = std::filesystem;

inline constexpr uint64_t kMaxBytes = 1 << 24;

struct Outcome {
  int status = 0;
  std::string out;
  std::string err;
};

class CommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / fmt::format("commands_test_{}", getpid());
    fs::remove_all(directory_);  // of a killed run with the same number
    model_ = directory_ / "model";
    fs::create_directories(model_);
    const fs::path fixture = CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain";
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::copy_file(fixture / name, model_ / name);
    }
    nlohmann::json vocab;
    for (int id = 0; id < 128; ++id) {
      const bool is_printable = id > ' ' && id < 127;
      vocab[is_printable ? std::string(1, static_cast<char>(id)) : fmt::format("<{}>", id)] = id;
    }
    vocab.erase("<32>");
    vocab["Ġ"] = 32;
    Write("model/tokenizer.json",
          nlohmann::json{
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}}
              .dump());
    Write("model/tokenizer_config.json",
          R"({"chat_template": "{% for m in messages %}[{{ m.role }}]{{ m.content }};)"
          R"({% endfor %}[assistant]"})");
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ / name; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  std::string Read(const std::string& name) const { return *ReadFile(Path(name), kMaxBytes); }

  static Outcome Run(std::vector<std::string> words) {
    words.insert(words.begin(), "convene");
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Outcome outcome;
    outcome.status = RunCommandLine(static_cast<int>(argv.size()), argv.data(), Commands());
    std::fflush(stdout);
    outcome.out = testing::internal::GetCapturedStdout();
    outcome.err = testing::internal::GetCapturedStderr();
    return outcome;
  }

  fs::path directory_;
  fs::path model_;
};

}  // namespace convene::cli
