#include "base/is_there.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace convene {
namespace {

namespace fs = std::filesystem;

TEST(IsThere, OnlyWhatHasNoNameIsAbsent) {
  const fs::path directory = fs::path(testing::TempDir()) / fmt::format("is_there_{}", getpid());
  fs::remove_all(directory);
  fs::create_directories(directory);
  std::ofstream(directory / "file") << "x";
  fs::create_symlink("circle", directory / "circle");
  fs::create_symlink("nowhere", directory / "dangling");
  fs::create_symlink("file", directory / "link");
  for (const char* name : {"file", "circle", "dangling", "link", "."}) {
    EXPECT_TRUE(IsThere(directory / name)) << name;
  }
  for (const char* name : {"absent", "absent/file", "file/absent"}) {
    EXPECT_FALSE(IsThere(directory / name)) << name;
  }
  EXPECT_TRUE(IsThere(directory / std::string(5000, 'x'))) << "a name that cannot be looked at";
  fs::remove_all(directory);
}

}  // namespace
}  // namespace convene
