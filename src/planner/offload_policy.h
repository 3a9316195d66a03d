// How a model that does not fit the fast tier of memory is run over it and a slower one (Cao et
// al., "MoE-Lightning", ASPLOS 2025, section 4.2): how many sequences a step has, in micro-batches
// of how many, what is computed where, and what stays in the fast tier. The policy is chosen that
// generates the most tokens in the time of prefill and decode together, where the paper counts
// decode alone.
//
// A step's seconds are the longest of what the link carries up and down and of what the fast and
// the slow tier's processors compute (Eq. 12), each computation at the lower of its two roofs (Eq.
// 8). How tasks wait for each other is not in that: it is what a simulated schedule adds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/memory_tiers.h"
#include "planner/offload_model.h"

namespace convene::planner {

// How weights are stored.
struct OffloadFormat {
  std::string name = "bf16";
  double weight_bytes = 2;    // per element of streamed weights
  double resident_bytes = 2;  // per element of the others
  double fast_flops = 0;      // of the fast tier's processor; 0: as the tier says
  double slow_flops = 0;      // of the slow tier's, likewise
};

struct OffloadPolicy {
  int batch = 1;                   // N: sequences of a step, a multiple of the micro-batch
  int micro_batch = 1;             // mu
  bool attention_on_host = false;  // scores and values where the slow tier's cache lies
  bool experts_on_host = false;    // of decode; prefill computes in the fast tier
  double weights_resident = 0;     // r_w, of the streamed weights
  double cache_resident = 0;       // r_c, of keys and values
  int format = 0;                  // of OffloadQuestion::formats

  int num_micro_batches() const { return batch / micro_batch; }
  bool operator==(const OffloadPolicy&) const = default;
};

struct OffloadQuestion {
  OffloadModel model;
  cost::MemoryTier fast;  // with rates and `bytes`
  cost::MemoryTier slow;  // bytes of 0: holds whatever is put there
  // From the fast tier down to the slow one; 0: what goes down takes turns with what goes up (a
  // disk).
  double down_bytes_per_second = 0;
  double prompt_tokens = 0;  // of each sequence, above 0
  double gen_tokens = 1;     // that each answer has, at least 1
  std::vector<OffloadFormat> formats = {OffloadFormat{}};
  double kv_bytes = 2;                  // per cached element, as the next
  double activation_bytes = 2;          // per element of a row
  double most_step_tokens = 0;          // rows of a prompt that are computed at once; 0: all of a
                                        // micro-batch
  double fast_reserved_bytes = 0;       // for the program
  int most_batch = 1 << 16;             // sequences that there are
  std::vector<int> micro_batches = {};  // that may be chosen; empty: all
  int resident_steps = 32;              // r_w and r_c are whole numbers of parts of so many

  bool slow_computes() const { return slow.flops.value_or(0) > 0; }
};

// What holds a step back.
enum class OffloadBound { kLinkUp, kLinkDown, kFast, kHost };
std::string_view NameOf(OffloadBound bound);  // "link up", "link down", "fast tier", "host"

// Seconds of a pass by what could hold it back; where fast and slow tier share a link, both
// directions are in `link_up`.
struct OffloadSeconds {
  double link_up = 0;
  double link_down = 0;
  double fast = 0;
  double host = 0;

  double longest() const;
  double busy() const { return link_up + link_down + fast + host; }
  OffloadBound bound() const;
};

struct OffloadFigures {
  double fast_bytes = 0;  // of memory, at most
  double slow_bytes = 0;
  bool fits = false;
  OffloadSeconds prefill = {};  // of all sequences
  OffloadSeconds step = {};     // of decode, at the mean context
  double seconds = 0;           // of prefill and all steps
  double tokens_per_second = 0;
};

OffloadFigures FiguresOf(const OffloadQuestion& question, const OffloadPolicy& policy);

struct OffloadAnswer {
  OffloadPolicy policy = {};
  OffloadFigures figures = {};
  // The best of each way, in the order that is tried: format, then attention and experts by the
  // fast tier or the host. Of a way of which nothing fits, `figures.fits` is false.
  struct Way {
    OffloadPolicy policy = {};
    OffloadFigures figures = {};
  };
  std::vector<Way> ways = {};
  int num_tried = 0;  // policies that were priced
};

// "bf16, attention on the host, experts streamed"
std::string DescribeWay(const OffloadQuestion& question, const OffloadPolicy& policy);

// The best of all policies; exact. Of policies with the same micro-batch and shares the one with
// the most sequences that fit is never slower, since what passes once for all is shared by more;
// so one batch is priced for each. Nor is, of as many micro-batches, the largest size that fits,
// since what passes once for each is shared by more, too; so one size is priced for each number of
// them. Of policies that generate equally much the one is taken that keeps the resources busy the
// least, then the smaller micro-batch. Errors: nothing fits; the message says how much memory would
// do.
Result<OffloadAnswer> SearchOffloadPolicy(const OffloadQuestion& question);

}  // namespace convene::planner
