#include "cost/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "cost/operator_work.h"

namespace convene::cost {
namespace {

using ::testing::HasSubstr;

TEST(Presets, EachIsAProfileWithRatesLinksAndSources) {
  const std::vector<std::string> names = PresetNames();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const std::string& name : names) {
    const auto machine = Preset(name);
    ASSERT_TRUE(machine) << machine.error().message;
    const auto read = MachineProfileFromJson(ToJson(*machine));
    ASSERT_TRUE(read) << name << ": " << read.error().message;
    EXPECT_EQ(ToJson(*read), ToJson(*machine)) << name;
    ASSERT_FALSE(machine->links.empty()) << name;
    for (const LinkLevel& link : machine->links) {
      EXPECT_GT(link.bytes_per_second, 0) << name;
      EXPECT_GT(link.latency_seconds, 0) << name;
      EXPECT_FALSE(link.source.empty()) << name;
    }
    // Any number of ranks is joined.
    EXPECT_EQ(machine->links.back().num_ranks, 0) << name;
    // A host, alone or with its GPU.
    EXPECT_TRUE(machine->device || !machine->machine.cpus.empty()) << name;
    if (!machine->machine.cpus.empty()) {
      EXPECT_GT(machine->machine.f32_gflops, 0) << name;
      EXPECT_GT(machine->machine.read_gbps, 0) << name;
      EXPECT_GE(machine->host_memory_bytes, uint64_t{64} << 30) << name;
      EXPECT_FALSE(machine->host_source.empty()) << name;
      EXPECT_FALSE(machine->host_assumptions.empty()) << name;
    }
    if (!machine->device) continue;
    EXPECT_GT(machine->device->flops.at("bf16"), 1e13) << name;
    EXPECT_GT(machine->device->memory_bytes_per_second, 1e11) << name;
    EXPECT_GT(machine->device->num_multiprocessors, 0) << name;
    EXPECT_FALSE(machine->device->source.empty()) << name;
  }
}

TEST(Presets, AHostHasADimmInEveryMemoryChannelAndSaysThatThisIsAssumed) {
  const auto machine = Preset("epyc-9654");
  ASSERT_TRUE(machine);
  EXPECT_EQ(machine->host_memory_bytes, uint64_t{12 * 64} << 30);
  EXPECT_DOUBLE_EQ(machine->machine.read_gbps, 460.8);
  EXPECT_THAT(machine->host_source, HasSubstr("EPYC 9654"));
  EXPECT_THAT(machine->host_assumptions,
              HasSubstr("all 12 memory channels with one DIMM of 64 GB"));
  EXPECT_DOUBLE_EQ(Preset("xeon-8380")->machine.read_gbps, 204.8);
}

TEST(Presets, LevelsOfLinksWidenOutwards) {
  const auto machine = Preset("a6000-nvlink");
  ASSERT_TRUE(machine);
  ASSERT_EQ(machine->links.size(), 3u);  // pairs, the host, the network
  EXPECT_EQ(machine->links[0].num_ranks, 2);
  EXPECT_EQ(machine->links[1].num_ranks, 8);
  EXPECT_EQ(machine->links[2].num_ranks, 0);
  EXPECT_EQ(Preset("a6000-pcie4")->links.size(), 2u);
  EXPECT_EQ(Preset("a100-nvlink-400g")->links.back().bytes_per_second, 50e9);
  EXPECT_EQ(Preset("a100-nvlink")->links.back().bytes_per_second, 25e9);
}

TEST(Presets, GpusAreFoundByTheNamesThatTablesWrite) {
  EXPECT_EQ(FindGpu("NVIDIA A100-SXM4-80GB")->key, "a100");
  EXPECT_EQ(FindGpu("NVIDIA A100-PCIE-40GB")->key, "a100-pcie");
  EXPECT_EQ(FindGpu("NVIDIA A10")->key, "a10");
  EXPECT_EQ(FindGpu("NVIDIA L40S")->key, "l40s");
  EXPECT_EQ(FindGpu("NVIDIA L4")->key, "l4");
  EXPECT_EQ(FindGpu("NVIDIA H100 80GB HBM3")->key, "h100");
  EXPECT_EQ(FindGpu("NVIDIA H200")->key, "h200");
  EXPECT_EQ(FindGpu("h20")->key, "h20");
  for (const GpuPreset& gpu : GpuPresets()) EXPECT_EQ(FindGpu(gpu.figures.name)->key, gpu.key);
  EXPECT_THAT(FindGpu("Example GPU").error().message, HasSubstr("a100"));
}

TEST(Presets, TestbedsOfAPaperHaveItsClocks) {
  const auto sheet = Preset("a6000-nvlink");
  const auto testbed = Preset("findep-a");
  ASSERT_TRUE(sheet && testbed);
  EXPECT_NEAR(testbed->device->flops.at("bf16") / sheet->device->flops.at("bf16"), 1.46 / 1.80,
              1e-9);
  EXPECT_EQ(testbed->device->memory_bytes_per_second, sheet->device->memory_bytes_per_second);
  EXPECT_EQ(testbed->links, sheet->links);
  EXPECT_THAT(testbed->device->source, HasSubstr("FinDEP"));
  EXPECT_THAT(testbed->device->assumptions, HasSubstr("1.46"));
  // What was measured elsewhere gives shares of limits, so none of it is taken as this machine's.
  for (const auto& [name, model] : testbed->operators) {
    EXPECT_TRUE(testbed->measured_on.contains(name)) << name;
  }
}

TEST(Presets, GpusJoinedByNvlinkHaveRatesOfExchangesOverMultiprocessors) {
  for (const char* name : {"a100-nvlink", "h100-nvlink", "h800-nvlink", "h20-nvlink", "h200-nvlink",
                           "findep-c", "findep-d"}) {
    const auto machine = Preset(name);
    for (const char* exchange : {"dispatch", "combine"}) {
      ASSERT_TRUE(machine->operators.contains(exchange)) << name;
      const OperatorModel& model = machine->operators.at(exchange);
      EXPECT_EQ(model.spec.feature_names, DispatchFeatures()) << name;
      EXPECT_THAT(model.spec.source, HasSubstr("deepep")) << name;
      EXPECT_EQ(model.ranges.back().min, 4) << name;
      EXPECT_EQ(model.ranges.back().max, 24) << name;
    }
    EXPECT_TRUE(machine->operators.contains("all_reduce")) << name;
  }
  // Each has its own table, or that of the nearest GPU that has one of this operator.
  EXPECT_FALSE(Preset("h200-nvlink")->measured_on.contains("dispatch"));
  EXPECT_THAT(Preset("h200-nvlink")->operators.at("dispatch").spec.source, HasSubstr("h200"));
  EXPECT_THAT(Preset("h200-nvlink")->measured_on.at("all_to_all").device.name, HasSubstr("H100"));
  EXPECT_FALSE(Preset("h100-nvlink")->measured_on.contains("combine"));
  EXPECT_THAT(Preset("h800-nvlink")->measured_on.at("combine").device.name, HasSubstr("H100"));
  EXPECT_TRUE(Preset("a100-nvlink")->measured_on.contains("dispatch"));
  EXPECT_FALSE(Preset("a100-nvlink")->measured_on.contains("all_reduce"));
  // Other curves are all of one GPU.
  EXPECT_FALSE(Preset("h100-nvlink")->operators.contains("product int8"));
  EXPECT_FALSE(Preset("a100-nvlink")->operators.contains("product fp8"));
  // Their kernels need NVLink among all ranks of a host, and a GPU that can run them.
  for (const char* name : {"a100-pcie4", "h100-pcie5", "a6000-nvlink", "v100-nvlink", "t4-gcp"}) {
    const auto machine = Preset(name);
    EXPECT_FALSE(machine->operators.contains("dispatch")) << name;
    EXPECT_FALSE(machine->operators.contains("all_reduce")) << name;
    EXPECT_TRUE(machine->operators.contains("all_to_all")) << name;
  }
}

TEST(Presets, CurvesMeetPointsThatWereHeldOut) {
  for (const char* name : {"a100-nvlink", "h100-nvlink", "h200-nvlink"}) {
    const auto machine = Preset(name);
    for (const auto& [operator_name, model] : machine->operators) {
      const bool is_product = operator_name.find("product") != std::string::npos;
      EXPECT_LT(model.chosen().median, is_product ? 0.10 : 0.05) << name << " " << operator_name;
    }
  }
}

TEST(Presets, AMistypedOneIsNamedWithItsClosest) {
  const auto machine = Preset("a100-nvlnk");
  ASSERT_FALSE(machine);
  EXPECT_THAT(machine.error().message, HasSubstr("did you mean a100-nvlink?"));
}

TEST(Presets, ANameInCapitalsIsThatOfThePreset) {
  EXPECT_THAT(Preset("A100-nvlink").error().message, HasSubstr("did you mean a100-nvlink?"));
  EXPECT_THAT(Preset("EPYC-7763").error().message, HasSubstr("did you mean epyc-7763?"));
}

TEST(Presets, TheBeginningOfNamesIsAnsweredWithThoseThatBeginSo) {
  EXPECT_THAT(Preset("h100").error().message,
              HasSubstr("those that begin so are h100-nvlink, h100-nvlink-200g, h100-pcie5"));
  EXPECT_THAT(Preset("A6000").error().message, HasSubstr("a6000-nvlink, a6000-nvlink-400g"));
  // "a1" is the beginning of other words alone.
  EXPECT_EQ(MeantPresets("a1").find("begin so"), std::string::npos);
  EXPECT_EQ(MeantPresets(""), "");
}

TEST(Presets, HostsHaveRatesOfBytesAndSayFromWhatTheyAreCounted) {
  for (const char* name : {"epyc-7763", "epyc-9654", "xeon-8380", "xeon-8480"}) {
    const auto machine = Preset(name);
    ASSERT_TRUE(machine);
    EXPECT_GE(machine->machine.int8_gops, machine->machine.f32_gflops) << name;
  }
  // 1.6 times 16 products and as many sums, on 64 cores of 2.45 GHz.
  EXPECT_DOUBLE_EQ(Preset("epyc-7763")->machine.int8_gops, 64 * 2.45 * 1.6 * 32);
  EXPECT_THAT(Preset("epyc-7763")->host_assumptions, HasSubstr("VPMADDWD"));
  // VNNI without BF16: two units of 64 products of bytes and as many sums.
  EXPECT_EQ(Preset("xeon-8380")->machine.isa, "avx512_vnni");
  EXPECT_DOUBLE_EQ(Preset("xeon-8380")->machine.int8_gops, 40 * 2.3 * 2 * 128);
}

TEST(Presets, DenseRatesOfHopperAreHalfOfThoseWithSparsity) {
  for (const char* name : {"h100", "h800", "h200"}) {
    const GpuPreset gpu = *FindGpu(name);
    EXPECT_EQ(gpu.figures.flops.at("fp8"), 3958e12 / 2) << name;
    EXPECT_EQ(gpu.figures.flops.at("int8"), 3958e12 / 2) << name;
  }
}

TEST(Presets, PairsWithALinkSayThatTheOthersHaveNone) {
  EXPECT_THAT(Preset("a6000-nvlink")->links[0].assumptions,
              HasSubstr("all others of a host reach each other over PCI Express"));
  EXPECT_THAT(Preset("a100-nvlink")->links[0].assumptions, HasSubstr("all see each other"));
}

}  // namespace
}  // namespace convene::cost
