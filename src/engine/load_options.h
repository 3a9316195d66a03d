// What may be asked of a model that is loaded, and who watches. Loading is loaded_model.h.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/environment.h"
#include "base/result.h"
#include "comm/group.h"
#include "engine/batch_work.h"
#include "engine/choose_formats.h"
#include "engine/step_costs_source.h"
#include "hardware/numa.h"
#include "model/model_spec.h"
#include "plan/plan.h"
#include "runtime/experiment.h"
#include "weights/load_weights.h"
#include "weights/page_eviction.h"

namespace convene::engine {

inline constexpr int kDefaultContext = 4096;
// The most that may be asked for: larger numbers are more likely a typing error than a wish.
inline constexpr int kMaxContext = 1 << 24;
inline constexpr int kMaxStepTokens = plan::kMostStepTokens;
inline constexpr const char* kNoSpill = "none";

enum class Offload : uint8_t {
  kAuto,    // kPages, or of a batch on a GPU what is priced to be faster
  kPages,   // experts come when they are wanted, and stay as long as there is room
  kLayers,  // of a GPU: all experts, layer by layer; keys, values and attention are the host's
  // Of a CPU: all weights of a packed directory stay in its mapped file, and the system brings them
  // and lets them go as it likes; to compare with.
  kMapped,
};

struct LoadOptions {
  FormatWishes formats = {};
  hardware::NumaPolicy numa = hardware::NumaPolicy::kAuto;
  std::optional<int> num_threads = {};  // unset: this rank's share of the cores
  // A rank that has fewer cores than num_threads takes those that it has; otherwise an error.
  bool may_have_fewer_threads = false;
  // The longest sequence in tokens; unset: what the model declares, at most kDefaultContext.
  std::optional<int> context = {};
  int max_step_tokens = 512;
  int max_sequences = 1;  // whose KV cache should fit at the same time
  // Seconds at most for taking the KV cache's memory from the machine before the first step: a
  // server's steps need not wait for it then.
  double kv_memory_s = 0;
  int expert_capacity = 0;  // as runtime::TransformerOptions
  // Most memory of this process, in bytes; unset: what the machine or its control group has free.
  std::optional<uint64_t> memory_budget = {};
  // The GPU that computes, of those that this process may use; unset: the CPU. One rank only.
  std::optional<int> gpu = {};
  // As memory_budget, of the GPU's memory.
  std::optional<uint64_t> device_memory_budget = {};
  // How a model runs that is larger than the memory of what computes.
  Offload offload = Offload::kAuto;
  // Where a checkpoint that does not fit is packed once, so that its experts can be read from there
  // while the model runs; empty: nowhere, it is refused. One rank only.
  std::string page_directory = {};
  // Where keys and values of a batch lie as far as that lets more sequences share what is read
  // (choose_batch.h); empty: in page_directory; kNoSpill: they stay in memory.
  std::string spill_directory = {};
  // Which experts give way where not all of them fit into memory.
  weights::PageEviction page_eviction = weights::PageEviction::kLeastUsed;
  // Where experts are read from a disk: what is to be computed, so that the number of sequences and
  // the tokens of a step can be chosen for it. Of one rank alone.
  std::optional<BatchWork> batch_work = {};
  weights::MatrixEdit edit = {};  // changes weights before they are packed, for measurements
  // How the ranks of `group` share the work; null: this process alone.
  plan::Plan plan = {};
  runtime::Experiment experiment = {};  // empty in production
  bool record = false;                  // as runtime::ParallelOptions
  // Makes weights of the shape that config.json says, and reads none: for measurements.
  bool random_weights = false;
  // Reads all weights once more and compares them: those of a checkpoint between the ranks' copies,
  // those of a packed directory with its checksums.
  bool verify_checkpoint = false;
  // Asked where the plan leaves the pipeline to be chosen; without one it is plain.
  StepCostsSource step_costs = {};
  comm::Group* group = nullptr;
  // This process among those that share its host's cores and memory; unset: as the launcher says.
  std::optional<LocalRank> local = {};
};

// Functions that are called while a model loads, from the loading thread; each may be empty.
struct LoadObserver {
  std::function<void(const ChosenFormats&)> planned;  // before anything is reserved
  weights::LoadProgress progress;
  // While a checkpoint is packed (LoadOptions::page_directory).
  weights::LoadProgress packing = {};
  // Gets a line about what `auto` has chosen, on rank 0, and on each rank about pages that it makes
  // (make_pages.h).
  std::function<void(const std::string&)> decided = {};
  // Gets a line about where weights lie that were packed ahead.
  std::function<void(const std::string&)> placed = {};
  // Gets a line when the disk from which experts are read answers slowly, also long after loading
  // and from other threads: it must refer to nothing that ends before the model.
  std::function<void(const std::string&)> disk_is_slow = {};
};

// What LoadedModel::Load refuses whatever the weights and the machine, for those who have long work
// to do before they load. Error: an option out of range.
Status CheckLoadOptions(const LoadOptions& options);
// The longest sequence in tokens, as asked for or as it is by default.
int ContextOf(const model::ModelSpec& spec, const LoadOptions& options);
// Error: a context beyond the positions that the model was trained for, whose text would look like
// an answer and be none.
Status CheckContext(const model::ModelSpec& spec, const LoadOptions& options);

// The options as rank 0 sends them to the others, without `group`, `local` and functions.
// LoadOptionsFromJson reads what ToJson has written; anything else is a bug (CHECK).
nlohmann::json ToJson(const LoadOptions& options);
LoadOptions LoadOptionsFromJson(const nlohmann::json& message);

}  // namespace convene::engine
