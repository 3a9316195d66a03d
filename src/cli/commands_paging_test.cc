// A memory budget: what is read from the disk in place of lying in memory changes no answer.
#include <charconv>

#include "cli/commands_test.h"

namespace convene::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

class CommandsPagingTest : public CommandsTest {
 protected:
  // The words of `run`, with a context that needs little.
  std::vector<std::string> RunWords(const std::string& model, const std::string& budget) const {
    std::vector<std::string> words = {
        "run", model,       "-p",   "hello there", "-n", "12",         "--temperature",
        "0",   "--weights", "int8", "--context",   "64", "--page-dir", Path("pages")};
    if (!budget.empty()) words.insert(words.end(), {"--memory-budget", budget});
    return words;
  }

  // The least budget that an error names, in MiB.
  static int LeastOf(const std::string& error) {
    const std::string before = "--memory-budget ";
    const size_t at = error.rfind(before);
    CHECK(at != error.npos, "{}", error);
    int mebibytes = 0;
    std::from_chars(error.data() + at + before.size(), error.data() + error.size(), mebibytes);
    return mebibytes;
  }
};

TEST_F(CommandsPagingTest, ABudgetThatIsTooSmallNamesTheLeastWhichThenDoes) {
  const Outcome whole = Run(RunWords(model_, ""));
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_THAT(whole.err, Not(HasSubstr("paged: ")));
  const Outcome refused = Run(RunWords(model_, "1.5 MiB"));
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("the least budget is --memory-budget "));
  EXPECT_FALSE(fs::exists(Path("pages"))) << "nothing is packed in vain";
  const std::string least = fmt::format("{}MiB", LeastOf(refused.err));
  const Outcome paged = Run(RunWords(model_, least));
  ASSERT_EQ(paged.status, 0) << paged.err;
  EXPECT_EQ(paged.out, whole.out);
}

TEST_F(CommandsPagingTest, BudgetsHaveAUnitAndAreMoreThanNothing) {
  for (const char* words : {"much", "0GiB", "-3GiB", "6", "1e400GiB"}) {
    const Outcome refused = Run(RunWords(model_, words));
    EXPECT_EQ(refused.status, 2) << words << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("--memory-budget"));
  }
}

TEST_F(CommandsPagingTest, InspectSaysWhatABudgetMeans) {
  const Outcome whole = Run({"inspect", model_});
  EXPECT_THAT(whole.out, HasSubstr("It fits here"));
  const Outcome little = Run({"inspect", model_, "--memory-budget", "2MB"});
  ASSERT_EQ(little.status, 0) << little.err;
  EXPECT_THAT(little.out, HasSubstr("available (--memory-budget 1.91 MiB)"));
  EXPECT_THAT(little.out, HasSubstr("It does not fit here"));
  EXPECT_THAT(little.out, HasSubstr("It does not run here: not enough memory"));
}

}  // namespace
}  // namespace convene::cli
