// The options that all commands share which load a model, declared in one place. What they do is
// engine/loaded_model.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "cli/cli11_fwd.h"
#include "cli/plan_options.h"
#include "cli/watch_options.h"
#include "comm/group.h"
#include "engine/fewer_ranks.h"
#include "engine/loaded_model.h"
#include "planner/workload.h"

namespace convene::cli {

struct ModelOptions {
  std::string directory;
  engine::LoadOptions load;
  PlanOptions plan = {};
  // What the model is loaded for, as far as the command knows; `batch` is load.max_sequences.
  planner::Workload workload = {};
  int64_t num_requests = 0;  // of such lengths, in all; 0: nobody knows
  // `workload` is what will come, all at once; otherwise it is what is usual, and steps of more
  // tokens than are usual would let answers wait for prompts that come later.
  bool knows_work = false;
  bool verifies = false;  // a plan by default runs before it is used, where that pays
  bool explains = false;  // LoadModel sets `explained`
  // As JSON, of the plan that runs: how it was chosen and its words, and as far as costs are known
  // all that `convene plan --json` says ("report"; otherwise "not_explained" says why there is
  // none).
  std::string explained = {};
  CLI::Option* chunk = nullptr;      // --chunk
  CLI::Option* max_batch = nullptr;  // --max-batch, of commands that have it
  // Of the steps of the model that LoadModel gives; Write is the command's matter.
  std::shared_ptr<WatchOptions> watch = std::make_shared<WatchOptions>();
  // Those that work, where LoadModel has a plan for fewer ranks than were started. It must outlive
  // the model.
  std::shared_ptr<engine::FewerRanks> fewer_ranks = {};

  bool says_chunk() const;
  bool says_max_batch() const;  // precondition: the command has it
};

// --kv-cache by itself.
CLI::Option* AddKvCacheOption(CLI::App& app, std::optional<kernels::KvFormat>& format);

// --weights, --int4-group, --activations and --kv-cache.
void AddFormatOptions(CLI::App& app, engine::FormatWishes& wishes);

// MODEL, the formats, --threads, --chunk, those of several ranks and those that watch steps.
void AddModelOptions(CLI::App& app, ModelOptions& options);

// --memory-budget, --page-dir and --page-cache.
void AddMemoryOptions(CLI::App& app, engine::LoadOptions& load);
// --device and --device-memory-budget.
void AddDeviceOptions(CLI::App& app, engine::LoadOptions& load);
// --memory-budget by itself.
CLI::Option* AddBudgetOption(CLI::App& app, std::optional<uint64_t>& memory_budget);

// "paged: 512 of 2,048 experts that were wanted were read ...\n"; empty where all are in memory.
std::string DescribePages(const weights::PagedWeights* paged);
// What keys and values on a disk have cost, as a line; empty: nothing.
std::string DescribeSpill(const runtime::SpillStatistics& spilled);

// --threads, --int4-group and --chunk by themselves.
void AddThreadsOption(CLI::App& app, std::optional<int>& num_threads);
void AddInt4GroupOption(CLI::App& app, std::optional<int>& columns);
void AddChunkOption(CLI::App& app, ModelOptions& options);

// Makes room for an encoder's inputs where --chunk and --context do not say how much: an encoder
// sees an input whole, in one step. `num_tokens`: of the longest input, or of those to be encoded
// together.
void FitInputs(ModelOptions& options, size_t num_tokens);

// --context, where the command does not know it.
void AddContextOption(CLI::App& app, ModelOptions& options);

// --expert-capacity.
void AddCapacityOption(CLI::App& app, ModelOptions& options);

// The model in a directory as its config.json tells it, before anything is loaded.
Result<model::ModelSpec> ReadSpec(const std::string& directory);

// engine::CheckPredictsText of it.
Status CheckPredictsText(const std::string& directory);

// Loads the model, on all ranks its share; tells memory needed and available before, progress
// meanwhile and the time after on standard error. `load.max_sequences` becomes how many run
// together, which a plan may say.
Result<std::unique_ptr<engine::LoadedModel>> LoadModel(ModelOptions& options, comm::Group* ranks);

}  // namespace convene::cli
