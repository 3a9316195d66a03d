#include "cli/text_table.h"

#include <gtest/gtest.h>

namespace convene::cli {
namespace {

TEST(TextTable, AlignsNamesLeftAndFiguresRight) {
  TextTable table;
  table.AddRow({"", "bytes", "share"});
  table.AddRow({"experts", "12,345", "90 %"});
  table.AddRule();
  table.AddRow({"total", "13,000"});
  EXPECT_EQ(table.Format(),
            "             bytes   share\n"
            "  experts   12,345    90 %\n"
            "  ------------------------\n"
            "  total     13,000\n");
}

TEST(TextTable, IsEmptyWithoutRows) { EXPECT_EQ(TextTable().Format(), ""); }

}  // namespace
}  // namespace convene::cli
