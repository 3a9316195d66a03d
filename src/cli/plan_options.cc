#include "cli/plan_options.h"

#include <fmt/format.h>

namespace convene::cli {

void AddPlanOptions(CLI::App& app, PlanOptions& options) {
  app.add_option("--layout", options.layout, "How ranks share the work (docs/ranks.md)")
      ->type_name("TEXT");
  const auto hidden = [](CLI::Option* option) { option->group(""); };
  hidden(app.add_option("--plan", options.path));
  hidden(app.add_option("--pipeline", options.pipeline));
  hidden(app.add_option("--wire", options.wire));
  hidden(app.add_option("--gemm", options.gemm));
  hidden(app.add_option("--comm-budget", options.comm_budget));
  hidden(app.add_flag("--no-overlap", options.no_overlap));
  CLI::Option* experts = app.add_option("--num-experts-skew", options.router.num_experts);
  CLI::Option* skew = app.add_option("--router-skew", options.router.skew);
  skew->check(CLI::Range(0.0, 1.0))->needs(experts);
  experts->check(CLI::PositiveNumber)->needs(skew);
  hidden(skew);
  hidden(experts);
}

Result<plan::Plan> ResolvePlan(const PlanOptions& options, int num_ranks) {
  plan::Plan plan;
  plan.layout = plan::DefaultLayout(num_ranks);
  if (!options.path.empty()) {
    const Result<plan::Plan> read = plan::ReadPlan(options.path);
    if (!read) return read.error();
    plan = *read;
  }
  if (options.layout) {
    const Result<strategy::Layout> layout = plan::ParseLayout(*options.layout);
    if (!layout) return layout.error();
    plan.layout = *layout;
  }
  if (options.pipeline) {
    if (Status parsed = plan::ParsePipeline(*options.pipeline, &plan); !parsed) {
      return parsed.error();
    }
  }
  if (options.wire) {
    const Result<plan::Wire> wire = plan::WireFromName(*options.wire);
    if (!wire) return wire.error();
    plan.wire = *wire;
  }
  if (options.gemm) {
    const Result<plan::GemmChoice> gemm = plan::GemmFromName(*options.gemm);
    if (!gemm) return gemm.error();
    plan.gemm = *gemm;
  }
  if (options.comm_budget) {
    if (*options.comm_budget < 0) {
      return Error{fmt::format("a budget of {} threads is out of range; it must be 0 or more",
                               *options.comm_budget)};
    }
    plan.comm_budget = *options.comm_budget;
  }
  if (options.no_overlap) {
    plan.pipeline = {.overlap = false};
    plan.auto_pipeline = false;
  }
  if (const Status fits = plan::CheckRanks(plan.layout, num_ranks); !fits) return fits.error();
  return plan;
}

}  // namespace convene::cli
