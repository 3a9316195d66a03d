// Comparing a schedule with the text that tests/golden/schedules keeps of it, and how that text is
// made anew. No tests.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/read_file.h"
#include "schedule/schedule.h"

namespace convene {

// A text that differs, or is not there yet, is written to a file beside the message, which says how
// to keep it. Nothing else makes these files: whoever keeps one has read what has changed.
inline void ExpectGolden(const schedule::Schedule& schedule, const std::string& name) {
  const Status status = Validate(schedule);
  ASSERT_TRUE(status.ok()) << status.error().message;
  const std::string path = CONVENE_SOURCE_DIR "/tests/golden/schedules/" + name + ".txt";
  const std::string text = ToText(schedule);
  const auto golden = ReadFile(path, 1 << 20);
  if (golden.ok() && *golden == text) return;
  const std::filesystem::path now = std::filesystem::path(testing::TempDir()) / (name + ".txt");
  std::ofstream(now) << text;
  const std::string keep = fmt::format("if it is meant to be so: mv {} {}", now.string(), path);
  ASSERT_TRUE(golden.ok()) << golden.error().message << "\n" << keep;
  EXPECT_EQ(text, *golden) << keep;
}

}  // namespace convene
