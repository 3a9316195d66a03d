#include "bench/papers/eps_moe_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bench/papers/eps_moe_case.h"
#include "cost/linear_fit.h"
#include "cost/operator_prices.h"
#include "planner/predict_step.h"
#include "simulate/simulate.h"

namespace convene::papers {
namespace {

using cost::ExpertsOrder;
using cost::OperatorCosts;
using schedule::TaskKind;

constexpr int kHidden = 5120;
constexpr int kWidth = 1536;

OperatorCosts CostsOn(const cost::MachineProfile& machine, const model::ModelSpec& spec,
                      const cost::OperatorCostsOptions& options) {
  Result<OperatorCosts> costs = OperatorCosts::Create(machine, spec, options);
  CHECK(costs.ok(), "{}", costs.error().message);
  return *std::move(costs);
}

// Experts of one device, each of which gets as many rows.
class OneDevice {
 public:
  explicit OneDevice(int groups, int comm_budget = 0)
      : spec_(ExpertsAlone(kWidth, groups, /*num_ranks=*/1)),
        costs_(CostsOn(MachineOfPaper(), spec_, {.comm_budget = comm_budget})) {}
  OneDevice(const OneDevice&) = delete;
  OneDevice& operator=(const OneDevice&) = delete;

  // Of gate, up and down: FLOP/s.
  double GroupedRate(double rows) const {
    return Flops(rows) /
           costs_.GroupedExpertsSeconds(moe(), groups() * rows, groups(), kElements).seconds;
  }
  double DenseRate(double rows) const {
    return Flops(rows) /
           costs_.DenseExpertsSeconds(moe(), groups() * rows, groups(), kElements).seconds;
  }

 private:
  static constexpr double kElements = 3.0 * kWidth * kHidden;

  const model::MoeSpec& moe() const { return *spec_.layers.front().moe; }
  double groups() const { return moe().num_experts; }
  double Flops(double rows) const { return 2 * groups() * rows * kElements; }

  model::ModelSpec spec_;
  OperatorCosts costs_;
};

void FigureFiveA() {
  constexpr double kRows[] = {64, 128, 256, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 6144};
  // The text: grouped is faster below, dense above, and between both are about as fast.
  constexpr double kFrom = 2048;
  constexpr double kTo = 3584;
  constexpr double kAboutAsFast = 0.1;  // the text has no number
  fmt::print(
      "\n## Fig. 5a: experts computed grouped and one after the other (dense), TFLOP/s, 16 experts "
      "of [1536, 5120]\n\n");
  fmt::print(
      "| rows of an expert | grouped | dense | dense / grouped | faster, published | faster, "
      "predicted | agrees |\n|---:|---:|---:|---:|---|---|---|\n");
  const OneDevice device(16);
  int agree = 0;
  for (const double rows : kRows) {
    const double grouped = device.GroupedRate(rows);
    const double dense = device.DenseRate(rows);
    const double ratio = dense / grouped;
    const std::string published = rows < kFrom ? "grouped" : rows > kTo ? "dense" : "about alike";
    const bool agrees = rows < kFrom ? ratio < 1
                        : rows > kTo ? ratio > 1
                                     : std::abs(ratio - 1) < kAboutAsFast;
    agree += agrees;
    fmt::print("| {} | {:.0f} | {:.0f} | {:.2f} | {} | {} | {} |\n", rows, 1e-12 * grouped,
               1e-12 * dense, ratio, published, ratio > 1 ? "dense" : "grouped",
               agrees ? "yes" : "no");
  }
  double low = 1;
  double high = 16384;
  while (high - low > 1) {
    const double middle = (low + high) / 2;
    (device.DenseRate(middle) > device.GroupedRate(middle) ? high : low) = middle;
  }
  fmt::print(
      "\nDense becomes faster at {:.0f} rows (published: between {} and {}); {} of {} loads "
      "agree.\n",
      high, kFrom, kTo, agree, std::size(kRows));
}

void FigureFiveB() {
  constexpr int kGroups[] = {1, 2, 4, 8, 16, 32};
  constexpr double kRows[] = {64, 256, 1024, 4096};
  fmt::print(
      "\n## Fig. 5b: rate of grouped products by groups, over the greatest of the row (the table "
      "begins at 8)\n\n");
  fmt::print(
      "| rows of an expert | 1 | 2 | 4 | 8 | 16 | 32 |\n|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const double rows : kRows) {
    std::vector<double> rates;
    for (const int groups : kGroups) rates.push_back(OneDevice(groups).GroupedRate(rows));
    const double most = *std::max_element(rates.begin(), rates.end());
    fmt::print("| {} |", rows);
    for (const double rate : rates) fmt::print(" {:.2f} |", rate / most);
    fmt::print("\n");
  }
  fmt::print(
      "\nThe text: with few rows more groups are faster, with many they are not. Values are in the "
      "picture alone and not scored.\n");
}

void FigureFiveC() {
  constexpr int kMultiprocessors[] = {132, 124, 116, 108, 100, 92, 84, 76, 68, 60, 52, 44, 36};
  constexpr double kRows = 6144;
  fmt::print(
      "\n## Fig. 5c: rate of grouped products by multiprocessors, over that with all 132; 6,144 "
      "rows of an expert\n\n| groups |");
  for (const int number : kMultiprocessors) fmt::print(" {} |", number);
  fmt::print("\n|---:|");
  for (size_t i = 0; i < std::size(kMultiprocessors); ++i) fmt::print("---:|");
  fmt::print("\n");
  for (const int groups : {4, 8, 16}) {
    const double all = OneDevice(groups).GroupedRate(kRows);
    fmt::print("| {} |", groups);
    for (const int number : kMultiprocessors) {
      fmt::print(" {:.2f} |", OneDevice(groups, 132 - number).GroupedRate(kRows) / all);
    }
    fmt::print("\n");
  }
  fmt::print(
      "\nThe text: fewer multiprocessors are as fast within a range, which groups do not change. "
      "Values are in the picture alone and not scored; that there is such a range is a rule of the "
      "cost model (OperatorCostsOptions::comm_budget) and no result.\n");
}

// A pass over memory by some of the multiprocessors.
void FigureSix() {
  constexpr int kMultiprocessors[] = {10, 20, 30, 40, 60, 80, 108};
  constexpr int kTokens[] = {64, 128, 512, 2048};
  constexpr int kEnough[] = {40, 60, 60, 60};  // published
  constexpr double kColumns = 8192;
  // Of all multiprocessors together ("NVIDIA A100 Tensor Core GPU Architecture", white paper), at
  // the clock of the data sheet's rates, in which a multiprocessor does 2,048 FLOPs.
  constexpr double kCacheBytesPerClock = 5120;
  constexpr double kFlopsPerClock = 2048;
  constexpr double kNegligible = 0.05;  // the text has no number
  const cost::MachineProfile machine = Machine("a100-nvlink");
  const model::ModelSpec spec = Model("DeepSeek-V2");
  const OperatorCosts costs = CostsOn(machine, spec, {});
  const double multiprocessors = machine.device->num_multiprocessors;
  const double clock = machine.device->flops.at("bf16") / multiprocessors / kFlopsPerClock;
  const double cache_rate = kCacheBytesPerClock * clock / multiprocessors;
  const double launch = costs.OtherSeconds(1);
  fmt::print(
      "\n## Fig. 6: an activation of [tokens, 8192] by multiprocessors of A100, us: bounded by "
      "their share of the L2 cache's rate / slowed in proportion, as the simulator has it\n\n"
      "| tokens |");
  for (const int number : kMultiprocessors) fmt::print(" {} |", number);
  fmt::print(" enough, published | predicted |\n|---:|");
  for (size_t i = 0; i < std::size(kMultiprocessors) + 2; ++i) fmt::print("---:|");
  fmt::print("\n");
  for (size_t i = 0; i < std::size(kTokens); ++i) {
    // The columns are gate and up, which are read; half as many are written.
    const double bytes = kTokens[i] * kColumns * 1.5 * 2;
    const double all = costs.OtherSeconds(bytes);
    const auto bounded = [&](double number) {
      return std::max(all, launch + bytes / (cache_rate * number));
    };
    fmt::print("| {} |", kTokens[i]);
    for (const int number : kMultiprocessors) {
      fmt::print(" {:.1f} / {:.1f} |", 1e6 * bounded(number), 1e6 * all * multiprocessors / number);
    }
    int enough = 1;
    while (bounded(enough) > (1 + kNegligible) * all) ++enough;
    fmt::print(" {} | {} |\n", kEnough[i], enough);
  }
  fmt::print(
      "\nThe text: with more than 40 (64 tokens) and 60 multiprocessors nothing is gained that "
      "counts. It has no limit for that; of the bound it is {:.0f} % here. Times are in the "
      "picture "
      "alone and not scored.\n",
      100 * kNegligible);
}

void FigureSeven() {
  constexpr int kMultiprocessors[] = {2, 5, 10, 15, 20, 30};
  constexpr double kRanks = 8;
  constexpr double kMebibyte = 1 << 20;
  constexpr double kVolumes[] = {0.0625, 0.25, 1, 8, 32};  // MiB of a card
  const cost::MachineProfile machine = Machine("a100-nvlink");
  const model::ModelSpec spec = Model("DeepSeek-V2");
  const OperatorCosts costs = CostsOn(machine, spec, {});
  const double link = machine.links.front().bytes_per_second;
  const double once = costs.exchanges().OnceOfCollective(TaskKind::kDispatch, kRanks);
  fmt::print(
      "\n## Fig. 7: an all-to-all of 8 A100 by its multiprocessors, us\n\n| MiB of a card |");
  for (const int number : kMultiprocessors) fmt::print(" {} |", number);
  fmt::print(" needed |\n|---:|");
  for (size_t i = 0; i <= std::size(kMultiprocessors); ++i) fmt::print("---:|");
  fmt::print("\n");
  for (const double volume : kVolumes) {
    const double bytes = volume * kMebibyte * (kRanks - 1) / kRanks;
    const double rate =
        link * costs.exchanges().OfCollective(TaskKind::kDispatch, kRanks, bytes, link).efficiency;
    const double needed = costs.exchanges().MultiprocessorsFor(rate);
    // As the simulator has it: with fewer than its links need an exchange is slower in proportion.
    const auto seconds = [&](double number) {
      return once + bytes / rate * std::max(1.0, needed / number);
    };
    fmt::print("| {} |", volume);
    for (const int number : kMultiprocessors) fmt::print(" {:.1f} |", 1e6 * seconds(number));
    fmt::print(" {} |\n", needed);
    if (volume != 32) continue;
    constexpr double kTen = 223.6;
    constexpr double kThirty = 199.2;
    fmt::print(
        "\n32 MiB, published / predicted: {} / {:.1f} with 10, {} / {:.1f} with 30; with 30 {:.0f} "
        "% / {:.0f} % shorter.\n",
        kTen, 1e6 * seconds(10), kThirty, 1e6 * seconds(30), 100 * (1 - kThirty / kTen),
        100 * (1 - seconds(30) / seconds(10)));
  }
  fmt::print(
      "The text: 10 are enough for decode, 10 to 20 for prefill. Other times are in the picture "
      "alone and not scored.\n");
}

// Sums return once, behind all chunks: of the exchanges only dispatch is beside the experts. The
// combines of the other chunks stay in the schedule, with nothing to move.
void CombineOnce(schedule::Schedule& schedule, int chunks) {
  std::vector<schedule::Amount> returned(schedule.num_ranks);
  for (schedule::Task& task : schedule.tasks) {
    if (task.kind != TaskKind::kCombine) continue;
    schedule::Amount& of_rank = returned[task.lane.rank];
    of_rank.insert(of_rank.end(), task.work.link_bytes.begin(), task.work.link_bytes.end());
    task.work.link_bytes.clear();
    if (task.chunk == chunks - 1) task.work.link_bytes = of_rank;
  }
}

struct Stage {
  double seconds = 0;   // from the router to the sum of what has returned
  double dispatch = 0;  // alone, as are the next
  double experts = 0;
};

Stage SimulateStage(int width, double rows, int chunks, bool overlap, ExpertsOrder order) {
  const model::ModelSpec spec = ExpertsAlone(
      width, kCalibratedExperts * PartsOfExpert(chunks, kCalibratedExperts), kRanksOfExperts);
  strategy::StepOptions options;
  options.roles = planner::LayoutOf({1, kRanksOfExperts}, {kRanksOfExperts, 1});
  options.pipeline = Chunks(chunks, overlap);
  options.prunes_last_layer = false;
  const planner::StepQuestion question{
      .spec = spec,
      .options = options,
      .groups = planner::Divide(StepOfExperts(kRanksOfExperts, kCalibratedExperts, rows),
                                kRanksOfExperts)};
  schedule::Schedule schedule = strategy::BuildStep(spec, options);
  CombineOnce(schedule, chunks);
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  const cost::ExpectedSizes expected = planner::ExpectSizes(question);
  const OperatorCosts costs =
      CostsOn(MachineOfPaper(), spec,
              {.order = order, .exchange_multiprocessors = kExchangeMultiprocessors});
  const auto sizes = [&](const schedule::Size& size) { return expected.at(size); };
  cost::Prices prices = cost::PriceSchedule(schedule, graph, costs, sizes).prices;
  Stage stage;
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const schedule::Task& task = schedule.tasks[graph.tasks_of(activity).front()];
    if (task.kind == TaskKind::kCombine && task.chunk < chunks - 1) {
      prices.fixed_seconds[activity] = 0;
    }
    const double alone = cost::SecondsAlone(prices, activity);
    if (task.kind == TaskKind::kDispatch) stage.dispatch += alone;
    // All ranks are alike.
    if (task.kind == TaskKind::kExperts && task.lane.rank == 0) stage.experts += alone;
  }
  const schedule::Timeline timeline = simulate::Simulate(schedule, graph, prices);
  double start = timeline.seconds();
  double end = 0;
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    if (schedule.tasks[id].kind == TaskKind::kRoute) {
      start = std::min(start, timeline.tasks[id].start);
    }
    if (schedule.tasks[id].kind == TaskKind::kFinish) end = std::max(end, timeline.tasks[id].end);
  }
  stage.seconds = end - start;
  return stage;
}

void FigureTen() {
  constexpr int kChunks[] = {1, 2, 3, 5, 10, 20};
  struct Load {
    int width;
    double rows;
  };
  // Fig. 10 has three loads of the narrow experts and one of the wide ones; the text does not name
  // their rows. These are those of Tables II and IV.
  constexpr Load kLoads[] = {{1536, 3072}, {1536, 1024}, {1536, 256}, {1536, 64}, {15360, 3072}};
  fmt::print(
      "\n## Fig. 10: one layer of experts by number of chunks, ms: dispatch beside experts / one "
      "after the other\n\n{} experts of each rank, as calibrated for Table II. Products: whichever "
      "of grouped and dense is faster for each chunk, as the paper chooses, or one of both. Best: "
      "the number of chunks that is fastest with dispatch beside experts. k N + b: the line "
      "through "
      "what N chunks take one after the other, up to {} chunks; R2: how well it fits them (1: "
      "exactly). C: the shorter of dispatch and experts, the most that overlap can save. sqrt(C / "
      "k): the number of chunks that the paper's formula (section IV-D) calls best.\n\n",
      kCalibratedExperts, kCalibratedExperts);
  fmt::print(
      "| width | rows of an expert | products | 1 | 2 | 3 | 5 | 10 | 20 | best | gain over 1 | "
      "sqrt(C / k) | R2 of kN + b |\n"
      "|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const Load& load : kLoads) {
    for (const auto& [order, name] :
         {std::pair(ExpertsOrder::kFaster, "faster"), std::pair(ExpertsOrder::kDense, "dense"),
          std::pair(ExpertsOrder::kGrouped, "grouped")}) {
      fmt::print("| {} | {} | {} |", load.width, load.rows, name);
      double first = 0;
      double least = 0;
      int best = 1;
      double overlapped = 0;  // most that can be
      std::vector<cost::Point> serial;
      for (const int chunks : kChunks) {
        const Stage with = SimulateStage(load.width, load.rows, chunks, true, order);
        const Stage without = SimulateStage(load.width, load.rows, chunks, false, order);
        fmt::print(" {:.3f} / {:.3f} |", 1e3 * with.seconds, 1e3 * without.seconds);
        if (chunks == 1) {
          first = least = with.seconds;
          overlapped = std::min(without.dispatch, without.experts);
        }
        if (with.seconds < least) {
          least = with.seconds;
          best = chunks;
        }
        // Beyond, weights are read more than once.
        if (chunks <= kCalibratedExperts) serial.push_back({double(chunks), without.seconds});
      }
      const cost::LinearFit line = cost::FitLinear(serial);
      fmt::print(" {} | {:.1f} % | {:.1f} | {:.3f} |\n", best, 100 * (first / least - 1),
                 std::sqrt(overlapped / line.beta), line.r2);
    }
  }
  fmt::print(
      "\nThe text: there is a best number of chunks, with few tokens no number gains, and what "
      "chunks cost is linear in their number. Times are in the picture alone and not scored.\n");
}

}  // namespace

void PrintFiguresOfEpsMoe() {
  FigureFiveA();
  FigureFiveB();
  FigureFiveC();
  FigureSix();
  FigureSeven();
  FigureTen();
}

}  // namespace convene::papers
