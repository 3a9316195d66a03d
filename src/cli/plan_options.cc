#include "cli/plan_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "base/units.h"
#include "checkpoint/model_files.h"
#include "cli/command.h"
#include "cli/parsed_by.h"
#include "cli/value_options.h"
#include "plan/disk_fields.h"

namespace convene::cli {

CLI::Option* AddAllowOption(CLI::App& app, std::vector<std::string>& words) {
  return AddWords(app, "--allow", words,
                  "What a plan may change of the numbers computed: layout, wire, weights, "
                  "transition")
      ->check(ListParsedBy(ParseAllowed))
      ->type_name("WORDS");
}

Result<planner::Allowed> ParseAllowed(const std::vector<std::string>& words) {
  planner::Allowed allowed;
  for (const std::string& word : words) {
    if (word == "layout") {
      allowed.layout = true;
    } else if (word == "wire") {
      allowed.wire = true;
    } else if (word == "weights") {
      allowed.weights = true;
    } else if (word == "transition") {
      allowed.transition = true;
    } else {
      return Error{fmt::format("{} is not known; there are layout, wire, weights and transition",
                               Quote(word))};
    }
  }
  return allowed;
}

Result<strategy::Layout> LayoutOf(const std::string& text, bool disaggregates) {
  Result<strategy::Layout> layout = plan::ParseLayout(text);
  if (!disaggregates || (layout && layout->disaggregates)) return layout;
  if (layout && layout->stages > 1) {
    return Error{fmt::format(
        "{} gives each rank whole layers, with attention and experts: leave --disaggregate out, "
        "or give a layout such as attention=dp1,experts=ep2",
        Quote(text))};
  }
  const std::string whole = text + ",disaggregate";
  layout = plan::ParseLayout(whole);
  if (layout) return layout;
  // Of the text that was given.
  Error error = layout.error();
  if (const size_t at = error.message.find(whole); at != std::string::npos) {
    error.message.replace(at, whole.size(), text);
  }
  return error;
}

CLI::Option* AddLayoutOption(CLI::App& app, std::optional<std::string>& layout,
                             const std::string& help) {
  return AddText(app, "--layout", layout, help)->check(ParsedBy([](const std::string& text) {
    // Whether --disaggregate is given is known once all options are; here is said what is wrong
    // either way in the same words.
    const auto together = LayoutOf(text, /*disaggregates=*/false);
    const auto apart = LayoutOf(text, /*disaggregates=*/true);
    const bool is_wrong = !together && !apart && together.error().message == apart.error().message;
    return is_wrong ? Status(together.error()) : Status();
  }));
}

void AddDisaggregationOptions(CLI::App& app, DisaggregationOptions& options) {
  app.add_flag("--disaggregate", options.disaggregate,
               "Attention and experts are on different ranks (docs/ranks.md)")
      ->group(kRareOptions);
  AddText(app, "--strategy", options.strategy,
          "How these take turns: naive, pppipe or fine (docs/ranks.md)")
      ->check(ParsedBy(plan::DisaggregatedStrategyFromName))
      ->type_name("NAME")
      ->group(kRareOptions);
  AddText(app, "--order", options.order,
          "Of attention and shared experts of micro-batches: asas or aass (docs/ranks.md)")
      ->check(ParsedBy(plan::OrderFromName))
      ->type_name("ORDER")
      ->group(kRareOptions);
}

namespace {

// `plan` as the options beside it want it.
Result<plan::Plan> Override(const PlanOptions& options, plan::Plan plan);

// What options say together that each alone does not; throws as CLI11 wants it.
void CheckLayoutOptions(const PlanOptions& options) {
  if (options.disaggregate && !options.layout && options.no_plan) {
    throw CLI::ValidationError(
        "--no-plan chooses nothing, and --disaggregate alone does not say how many ranks have "
        "attention and how many the experts: give --layout, for instance "
        "attention=dp1,experts=ep2, or leave --no-plan out");
  }
  if (options.no_plan && !options.path.empty()) {
    throw CLI::ValidationError("--no-plan and --plan exclude each other: leave one out");
  }
  if (options.no_plan && !options.allowed.empty()) {
    throw CLI::ValidationError("--no-plan chooses nothing, so there is nothing to --allow");
  }
  if (options.layout) {
    const auto layout = LayoutOf(*options.layout, options.disaggregate);
    if (!layout) throw CLI::ValidationError("--layout: " + layout.error().message);
  }
  // With a plan, or a division of the ranks that are started, it depends on these.
  if (!options.path.empty() || (options.decode_experts && !options.layout)) return;
  plan::Plan any;
  any.layout.disaggregates = options.disaggregate;
  const auto plan = Override(options, std::move(any));
  if (!plan) throw CLI::ValidationError(plan.error().message);
}

}  // namespace

void AddPlanOptions(CLI::App& app, PlanOptions& options) {
  AddLayoutOption(
      app, options.layout,
      "How ranks share the work, for instance attention=dp2,experts=ep3:1 (docs/ranks.md)");
  AddDisaggregationOptions(app, options);
  // Commands have checks of their own when parsing is complete.
  app.final_callback([&options] { CheckLayoutOptions(options); });
  const auto rare = [](CLI::Option* option, const char* type) {
    option->type_name(type)->group(kRareOptions);
  };
  rare(AddText(app, "--decode-experts", options.decode_experts,
               "Experts in steps of generated tokens alone, as in a layout: tp2 (docs/ranks.md)")
           ->check(ParsedBy(plan::CheckExperts)),
       "DIVISION");
  rare(AddNumber(app, "--epoch-steps", options.epoch_steps, {0, plan::kMostEpochSteps},
                 "Decode steps with these before later prompts get their turn (default: 0)"),
       "N");
  rare(AddText(app, "--transition", options.transition,
               "How ranks get the experts of --decode-experts: reshard (from other ranks, default) "
               "or int4 "
               "(from a backup of their own)")
           ->check(ParsedBy(plan::TransitionFromName)),
       "KIND");
  rare(AddText(app, "--keep", options.keep,
               "Of the divisions of prefill and --decode-experts, in memory: one (default) or both")
           ->check(CLI::IsMember({"one", "both"})),
       "DIVISIONS");
  rare(AddText(app, "--prompts", options.prompts,
               "Prompts that come within --epoch-steps: wait (default) for their end, or join")
           ->check(CLI::IsMember({"wait", "join"})),
       "WHAT");
  rare(AddPath(app, "--plan", options.path, "Read a plan; the options beside it override it"),
       "FILE.json");
  rare(AddText(app, "--pipeline", options.pipeline,
               "Chunks of an expert stage: N, N:tokens, N:experts or auto")
           ->check(ParsedBy([](std::string_view text) {
             plan::Plan unused;
             return plan::ParsePipeline(text, &unused);
           })),
       "TEXT");
  rare(AddNumber(app, "--micro-batches", options.micro_batches, {1, strategy::kMostMicroBatches},
                 "Parts of a step: one computes while another exchanges (default: 1; 2 with "
                 "--disaggregate, unless the strategy is naive)"),
       "N");
  rare(AddText(app, "--wire", options.wire,
               "Rows between ranks: f32, bf16, fp8 (sums come back as bf16), "
               "fp8-both or auto (default)")
           ->check(CLI::IsMember({"auto", "f32", "bf16", "fp8", "fp8-both"})),
       "FORMAT");
  rare(AddText(app, "--gemm", options.gemm, "The experts' work: grouped, dense or auto (default)")
           ->check(CLI::IsMember({"auto", "grouped", "dense"})),
       "ORDER");
  rare(AddNumber(app, "--comm-budget", options.comm_budget, {0, plan::kMostCommBudget},
                 "Threads of each rank that products leave to exchanges under way"),
       "N");
  app.add_flag("--no-plan", options.no_plan,
               "Ranks share the work as is usual: measure nothing first, and choose nothing")
      ->group(kRareOptions);
  AddAllowOption(app, options.allowed)->group(kRareOptions);
  app.add_flag("--no-overlap", options.no_overlap,
               "Exchanges wait for the computation and it for them")
      ->group(kRareOptions);
  CLI::Option* experts =
      AddNumber(app, "--num-experts-skew", options.routing.num_experts_skew, kPositive,
                "Made-up routing, for experiments: the number of experts preferred");
  CLI::Option* skew = AddNumber(app, "--router-skew", options.routing.skew, {0.0, 1.0},
                                "Made-up routing: the share of tokens that prefer them");
  skew->needs(experts);
  experts->needs(skew);
  CLI::Option* counts = AddPath(app, "--router-counts", options.router_counts_path,
                                "Made-up routing: experts are chosen as often as was recorded");
  counts->excludes(skew);
  rare(counts, "FILE.json");
  rare(skew, "SHARE");
  rare(experts, "N");
}

runtime::RouterOverride RouterOverrideOf(const planner::Routing& routing,
                                         const model::ModelSpec& spec) {
  runtime::RouterOverride router = {.skew = routing.skew, .num_experts = routing.num_experts_skew};
  if (!routing.counts.empty()) router.shares = planner::SharesOf(routing, spec);
  return router;
}

std::string DescribeChanges(const runtime::PhaseChanges& changes) {
  if (changes.count == 0) return "";
  std::string text = fmt::format("experts moved {} time{} in {:.3f} s, {} sent by rank 0",
                                 changes.count, changes.count == 1 ? "" : "s", changes.seconds,
                                 FormatBytes(static_cast<uint64_t>(changes.sent_bytes)));
  if (changes.beside_count > 0) {
    text += fmt::format(
        "; {} of these came from the int4 backup beside prompts, in {:.3f} s of "
        "rank 0's load lane",
        changes.beside_count, changes.beside_seconds);
  }
  return text + "\n";
}

nlohmann::ordered_json ToJson(const runtime::PhaseChanges& changes) {
  return {{"count", changes.count},
          {"seconds", changes.seconds},
          {"sent_bytes", changes.sent_bytes},
          {"beside_count", changes.beside_count},
          {"beside_seconds", changes.beside_seconds}};
}

std::vector<std::string> OptionsBesidePlan(const PlanOptions& options) {
  std::vector<std::string> names;
  if (options.path.empty()) return names;
  const auto add = [&names](bool is_given, const char* name) {
    if (is_given) names.emplace_back(name);
  };
  add(options.layout.has_value(), "--layout");
  add(options.disaggregate && options.layout, "--disaggregate");  // else the plan says so, too
  add(options.strategy.has_value(), "--strategy");
  add(options.order.has_value(), "--order");
  add(options.decode_experts.has_value(), "--decode-experts");
  add(options.epoch_steps.has_value(), "--epoch-steps");
  add(options.transition.has_value(), "--transition");
  add(options.keep.has_value(), "--keep");
  add(options.prompts.has_value(), "--prompts");
  add(options.pipeline.has_value(), "--pipeline");
  add(options.micro_batches.has_value(), "--micro-batches");
  add(options.wire.has_value(), "--wire");
  add(options.gemm.has_value(), "--gemm");
  add(options.comm_budget.has_value(), "--comm-budget");
  add(options.no_overlap, "--no-overlap");
  return names;
}

namespace {

// What a plan said of ranks with attention or experts alone, where an option gives another layout.
void ForgetStrategy(strategy::Pipeline& pipeline) {
  pipeline.order = strategy::AttentionOrder::kAsas;
  pipeline.dispatch_after_shared = false;
}

// Of what neither options nor a plan say: two micro-batches, of which one computes while the other
// one's rows are under way.
Status SetDisaggregation(const PlanOptions& options, plan::Plan& plan) {
  const bool is_asked = options.strategy || options.order;
  if (is_asked && !plan.layout.disaggregates) {
    return Error{fmt::format(
        "{} is of layouts whose attention and experts are on different ranks: add --disaggregate, "
        "or leave it out",
        options.strategy ? "--strategy" : "--order")};
  }
  if (!plan.layout.disaggregates) return {};
  if (options.strategy) {  // of a plan's numbers only those stay that options give, too
    if (!options.micro_batches) plan.pipeline.micro_batches = 1;
    if (!options.pipeline) {
      plan.pipeline.chunks = 1;
      plan.pipeline.cut = strategy::ChunkCut::kTokens;
      plan.pipeline.cuts.clear();
      plan.auto_pipeline = false;
      plan.cut_from_tokens = 0;
    }
    plan.pipeline.order = strategy::AttentionOrder::kAsas;
  }
  if (options.order) plan.pipeline.order = *plan::OrderFromName(*options.order);
  plan::DisaggregatedStrategy chosen = options.strategy
                                           ? *plan::DisaggregatedStrategyFromName(*options.strategy)
                                           : plan::StrategyOf(plan.pipeline);
  const bool says_micro_batches =
      options.micro_batches || (!options.path.empty() && !options.strategy);
  if (!says_micro_batches && chosen != plan::DisaggregatedStrategy::kNaive)
    plan.pipeline.micro_batches = 2;
  return plan::SetStrategy(chosen, &plan);
}

// How ranks come from one division of the experts to the other.
Status ChangePhases(const PlanOptions& options, plan::Plan& plan) {
  const char* const given = options.epoch_steps  ? "--epoch-steps"
                            : options.transition ? "--transition"
                            : options.keep       ? "--keep"
                            : options.prompts    ? "--prompts"
                                                 : nullptr;
  if (given == nullptr) return {};
  if (!plan.decode) {
    return Error{
        fmt::format("{} is of plans that divide the experts otherwise in decode: give "
                    "--decode-experts, too, or leave it out",
                    given)};
  }
  plan::PhaseChange& change = plan.phase_change;
  if (options.epoch_steps) change.epoch_steps = *options.epoch_steps;
  if (options.transition) change.transition = *plan::TransitionFromName(*options.transition);
  if (options.keep) change.keeps_both = *options.keep == "both";
  if (options.prompts) change.prompts_join = *options.prompts == "join";
  return plan::CheckTransition(plan);
}

Result<plan::Plan> Override(const PlanOptions& options, plan::Plan plan) {
  if (options.layout) {
    const Result<strategy::Layout> layout = LayoutOf(*options.layout, options.disaggregate);
    if (!layout) return layout.error();
    plan.layout = *layout;
    plan.made_for.reset();  // it was compared when the file was read
    plan.decode.reset();    // it is that of both phases
    if (!layout->disaggregates) ForgetStrategy(plan.pipeline);
  }
  if (options.disaggregate && !plan.layout.disaggregates) {
    return Error{fmt::format(
        "--disaggregate is beside a plan with the layout {}, whose ranks have both attention and "
        "experts: leave it out, or give --layout as well, for instance attention=dp1,experts=ep2",
        plan::ToText(plan.layout))};
  }
  if (options.decode_experts) {
    if (Status parsed = plan::ParseDecodeExperts(*options.decode_experts, &plan); !parsed) {
      return parsed.error().At("--decode-experts");
    }
  }
  if (Status changed = ChangePhases(options, plan); !changed) return changed.error();
  if (options.no_overlap) {
    plan.pipeline.overlap = false;
    plan.pipeline.micro_batches = 1;  // more of them only wait for each other
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
  if (options.comm_budget) plan.comm_budget = *options.comm_budget;
  if (options.micro_batches) plan.pipeline.micro_batches = *options.micro_batches;
  // What is given holds for all steps.
  if (options.layout || options.pipeline || options.micro_batches || options.strategy ||
      options.order || options.no_overlap) {
    plan.lines.clear();
  }
  if (const Status set = SetDisaggregation(options, plan); !set) return set.error();
  if (const Status fits = plan::CheckLayout(plan); !fits) return fits.error();
  if (const Status sense = plan::CheckPipeline(plan); !sense) return sense.error();
  if (const Status can = plan::CheckDiskFields(plan); !can) return can.error();
  return plan;
}

}  // namespace

Result<plan::Plan> ResolvePlan(const PlanOptions& options, const std::string& model_directory,
                               int num_ranks) {
  plan::Plan plan;
  plan.layout = plan::DefaultLayout(num_ranks);
  if (options.disaggregate && !options.layout && options.path.empty()) {
    if (num_ranks == 1) {
      return Error{
          "--disaggregate puts attention and experts on different ranks, and this is one process: "
          "start several with mpirun -n 3 --bind-to none, or leave it out"};
    }
    // Until one is chosen, and where none can be.
    plan.layout = {.expert_ep = num_ranks - 1, .disaggregates = true};
  }
  if (!options.path.empty()) {
    const Result<plan::Plan> read = plan::ReadPlan(options.path, plan.layout);
    if (!read) return read.error();
    const Result<checkpoint::ConfigFile> config = checkpoint::ReadConfigFile(model_directory);
    if (!config) return config.error();
    const Status meant = plan::CheckMadeFor(*read, plan::ModelHash(config->json), num_ranks);
    if (!meant) return meant.error().At(options.path);
    plan = *read;
  }
  const Result<plan::Plan> overridden = Override(options, std::move(plan));
  if (!overridden) return overridden.error();
  // A plan for fewer ranks is executed by the first ones (engine/fewer_ranks.h).
  const bool is_for_fewer =
      !options.path.empty() && !options.layout && overridden->layout.num_ranks() < num_ranks;
  if (is_for_fewer) return overridden;
  if (const Status fits = plan::CheckRanks(overridden->layout, num_ranks); !fits)
    return fits.error();
  return overridden;
}

}  // namespace convene::cli
