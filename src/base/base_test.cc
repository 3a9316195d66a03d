#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/result.h"
#include "base/units.h"

namespace convene {
namespace {

TEST(ParseBytes, TakesDecimalsAndUnitsOfBothKinds) {
  EXPECT_EQ(*ParseBytes("6GiB"), uint64_t{6} << 30);
  EXPECT_EQ(*ParseBytes("2.94 GB"), 2'940'000'000u);
  EXPECT_EQ(*ParseBytes("1.5mib"), 3u << 19);
  EXPECT_EQ(*ParseBytes("512 B"), 512u);
  for (const char* text : {"", "6", "GiB", "-1GiB", "0GiB", "6 GiBs", "6  GiB", "1e3MB", "nan GiB",
                           "0.1B", " 6GiB", "0x10MiB"}) {
    const Result<uint64_t> none = ParseBytes(text);
    ASSERT_FALSE(none.ok()) << text;
    EXPECT_NE(none.error().message.find("such as 6GiB"), std::string::npos);
  }
  const Result<uint64_t> most = ParseBytes("99999999999TiB");
  ASSERT_FALSE(most.ok());
  EXPECT_NE(most.error().message.find("more memory than a program can have"), std::string::npos);
}

TEST(FormatBytes, KeepsThreeDigitsAndPicksTheUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(13838319616), "12.9 GiB");
  EXPECT_EQ(FormatBytes(1023 * 1024), "1.00 MiB");
}

TEST(FormatCount, SeparatesThousands) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(6919161856), "6,919,161,856");
}

TEST(Result, HoldsAValueOrAnError) {
  Result<int> good = 3;
  ASSERT_TRUE(good);
  EXPECT_EQ(*good, 3);
  Result<int> bad = Error{"no"};
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message, "no");
}

TEST(Error, IsAnInvalidArgumentWhereItNamesNoKindAndKeepsItsKindWithAPlace) {
  EXPECT_EQ(Error{"no"}.kind, ErrorKind::kInvalidArgument);
  const Error error = NotFound("no such file").At("config.json");
  EXPECT_EQ(error.kind, ErrorKind::kNotFound);
  EXPECT_EQ(error.message, "config.json: no such file");
}

TEST(Error, OfTheSystemSaysWhatIsMissing) {
  EXPECT_EQ(KindOfErrno(ENOENT), ErrorKind::kNotFound);
  EXPECT_EQ(KindOfErrno(ENOSPC), ErrorKind::kResourceExhausted);
  EXPECT_EQ(KindOfErrno(ENOMEM), ErrorKind::kResourceExhausted);
  EXPECT_EQ(KindOfErrno(EPIPE), ErrorKind::kUnavailable);
  EXPECT_EQ(KindOfErrno(EIO), ErrorKind::kDataLoss);
  EXPECT_EQ(KindOfErrno(EACCES), ErrorKind::kInvalidArgument);
}

TEST(ResultDeathTest, ReadingAFailedResultEndsTheProcess) {
  Result<int> bad = Error{"disk is gone"};
  EXPECT_DEATH(static_cast<void>(*bad), "disk is gone");
}

// Sets variables for its lifetime, and none of a launcher's otherwise.
class LauncherVariables {
 public:
  explicit LauncherVariables(std::vector<std::pair<std::string, std::string>> variables) {
    for (const char* name :
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID",
          "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_LOCALID",
          "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE"})
      unsetenv(name);
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), 1);
      names_.push_back(name);
    }
  }
  ~LauncherVariables() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

TEST(RankFromLauncher, IsOneOfOneWithoutALauncher) {
  const LauncherVariables none({});
  EXPECT_EQ(RankFromLauncher().rank, 0);
  EXPECT_EQ(RankFromLauncher().size, 1);
  EXPECT_EQ(RankFromLauncher().launcher, "");
}

TEST(RankFromLauncher, KnowsMpirunAndStepsOfSlurm) {
  {
    const LauncherVariables openmpi({{"OMPI_COMM_WORLD_RANK", "2"},
                                     {"OMPI_COMM_WORLD_SIZE", "4"},
                                     {"SLURM_PROCID", "0"},
                                     {"SLURM_STEP_NUM_TASKS", "2"}});
    EXPECT_EQ(RankFromLauncher().rank, 2);
    EXPECT_EQ(RankFromLauncher().size, 4);
    EXPECT_EQ(RankFromLauncher().launcher, "mpirun of OpenMPI");
  }
  {
    const LauncherVariables mpich({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}});
    EXPECT_EQ(RankFromLauncher().rank, 1);
    EXPECT_EQ(RankFromLauncher().size, 3);
  }
  const LauncherVariables step({{"SLURM_PROCID", "5"}, {"SLURM_STEP_NUM_TASKS", "8"}});
  EXPECT_EQ(RankFromLauncher().rank, 5);
  EXPECT_EQ(RankFromLauncher().size, 8);
}

TEST(LocalRankFromLauncher, ReadsWhatSlurmHasOnEachNode) {
  const auto count_on = [](const char* tasks, const char* node) {
    const LauncherVariables step(
        {{"SLURM_LOCALID", "1"}, {"SLURM_NODEID", node}, {"SLURM_STEP_TASKS_PER_NODE", tasks}});
    return LocalRankFromLauncher().count;
  };
  EXPECT_EQ(count_on("2", "0"), 2);
  EXPECT_EQ(count_on("4(x2),3,2(x2)", "1"), 4);
  EXPECT_EQ(count_on("4(x2),3,2(x2)", "2"), 3);
  EXPECT_EQ(count_on("4(x2),3,2(x2)", "4"), 2);
  for (const char* nonsense :
       {"", "2(x", "(x2)", "4(x2),", "-3", "4;3", "4(x0),3", "99999999999"}) {
    EXPECT_EQ(count_on(nonsense, "7"), 1) << nonsense;
  }
  for (const char* open : {"2(x", "2(x3", "2(x3,2", "2(x3;"}) {
    EXPECT_EQ(count_on(open, "0"), 1) << open;
    EXPECT_EQ(count_on(open, "5"), 1) << open;
  }
}

TEST(RankFromLauncher, TakesABatchScriptAndNonsenseForOneProcess) {
  {
    const LauncherVariables script({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
    EXPECT_EQ(RankFromLauncher().size, 1);
  }
  const LauncherVariables nonsense({{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_EQ(RankFromLauncher().size, 1);
}

}  // namespace
}  // namespace convene
