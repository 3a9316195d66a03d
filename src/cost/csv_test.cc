#include "cost/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::cost {
namespace {

using ::testing::HasSubstr;

TEST(Csv, FieldsAreFoundByTheNamesOfTheirColumns) {
  const auto table = CsvTable::Parse("a,b\r\n1,\"x, \"\"y\"\"\"\n\n2,\n");
  ASSERT_TRUE(table) << table.error().message;
  ASSERT_EQ(table->num_rows(), 2u);
  EXPECT_EQ(table->column("b"), 1);
  EXPECT_EQ(table->column("c"), -1);
  EXPECT_EQ(table->at(0, 1), "x, \"y\"");
  EXPECT_EQ(table->at(1, 0), "2");
  EXPECT_EQ(table->at(1, 1), "");
  EXPECT_EQ(table->line_of(0), 2u);
  EXPECT_EQ(table->line_of(1), 4u);
}

TEST(Csv, AByteOrderMarkIsNoPartOfTheFirstName) {
  const auto table = CsvTable::Parse("\xEF\xBB\xBFprompt_tokens,b\n1,2\n");
  ASSERT_TRUE(table);
  EXPECT_EQ(table->column("prompt_tokens"), 0);
}

TEST(Csv, TheLastLineNeedsNoEnd) {
  const auto table = CsvTable::Parse("a\n7");
  ASSERT_TRUE(table);
  ASSERT_EQ(table->num_rows(), 1u);
  EXPECT_EQ(table->at(0, 0), "7");
}

TEST(Csv, DamagedTextIsRefusedWithItsLine) {
  const auto message = [](std::string_view text) {
    const auto table = CsvTable::Parse(text);
    return table ? "accepted" : table.error().message;
  };
  EXPECT_THAT(message(""), HasSubstr("empty"));
  EXPECT_THAT(message("a,b\n1,2\n3\n"), HasSubstr("line 3 has 1 field; the first line names 2"));
  EXPECT_THAT(message("a,b\n1,\"2\n"), HasSubstr("line 2 has a quote"));
  EXPECT_THAT(message("a,a\n1,2\n"), HasSubstr("same name"));
  EXPECT_THAT(message(std::string(100, ',')), HasSubstr("101 columns"));
}

}  // namespace
}  // namespace convene::cost
