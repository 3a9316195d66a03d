#include "planner/offload_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/units.h"

namespace convene::planner {
namespace {

// Products of amounts that add up to a capacity exactly must not miss it by rounding.
constexpr double kSlack = 1 + 1e-12;

double Roofed(double flops, double bytes, double flops_rate, double bytes_rate) {
  return std::max(flops / flops_rate, bytes / bytes_rate);
}

// What the figures of many policies have in common.
class Pricing {
 public:
  Pricing(const OffloadQuestion& question, const OffloadFormat& format)
      : q_(question),
        model_(question.model),
        format_(format),
        streamed_bytes_(model_.StreamedElements() * format.weight_bytes),
        resident_bytes_(model_.resident_elements * format.resident_bytes),
        fast_flops_(format.fast_flops > 0 ? format.fast_flops : *question.fast.flops),
        slow_flops_(format.slow_flops > 0 ? format.slow_flops : question.slow.flops.value_or(0)),
        context_(question.prompt_tokens + question.gen_tokens / 2),
        longest_(question.prompt_tokens + question.gen_tokens) {
    cached_at_mean_ = model_.CachedElements(context_) * q_.kv_bytes;
    cached_of_sequence_ = model_.CachedElements(longest_) * q_.kv_bytes;
    cached_of_prompt_ = model_.CachedElements(q_.prompt_tokens) * q_.kv_bytes;
    cached_of_token_ = model_.CachedElements(1) * q_.kv_bytes;
  }

  // Of the fast tier, without the cache that stays there.
  double FastBytes(const OffloadPolicy& policy) const {
    const double streamed = 1 - policy.weights_resident;
    // Two layers' streamed weights: one is computed with, the next one comes.
    const double buffers =
        streamed > 0 ? 2 * model_.most_streamed_layer * format_.weight_bytes * streamed : 0;
    return q_.fast_reserved_bytes + resident_bytes_ + policy.weights_resident * streamed_bytes_ +
           buffers + RowBytes(policy) + CacheBuffers(policy);
  }
  // Of one sequence, in each tier.
  double FastCacheBytes(const OffloadPolicy& policy) const {
    return policy.cache_resident * cached_of_sequence_;
  }
  double SlowCacheBytes(const OffloadPolicy& policy) const {
    return (1 - policy.cache_resident) * cached_of_sequence_ + model_.hidden * q_.activation_bytes;
  }
  double SlowBytes(const OffloadPolicy& policy) const {
    return (1 - policy.weights_resident) * streamed_bytes_;
  }

  OffloadFigures Figures(const OffloadPolicy& policy) const {
    OffloadFigures figures;
    figures.fast_bytes = FastBytes(policy) + policy.batch * FastCacheBytes(policy);
    figures.slow_bytes = SlowBytes(policy) + policy.batch * SlowCacheBytes(policy);
    figures.fits = figures.fast_bytes <= q_.fast.bytes * kSlack &&
                   (q_.slow.bytes <= 0 || figures.slow_bytes <= q_.slow.bytes * kSlack);
    figures.prefill = Prefill(policy);
    figures.step = Step(policy);
    figures.seconds = figures.prefill.longest() + (q_.gen_tokens - 1) * figures.step.longest();
    figures.tokens_per_second = policy.batch * q_.gen_tokens / figures.seconds;
    return figures;
  }

 private:
  // Rows of one micro-batch's prompts at their widest: the residual stream twice, queries, keys and
  // values, and what stands between the matrices of a token's experts (gate, up and their product).
  double RowBytes(const OffloadPolicy& policy) const {
    double rows = policy.micro_batch * q_.prompt_tokens;
    if (q_.most_step_tokens > 0) rows = std::min(rows, q_.most_step_tokens);
    const double layers = model_.num_layers;
    const double row = 2 * model_.hidden +
                       (model_.query_elements + model_.output_elements) / layers +
                       3 * model_.most_expert_row;
    return rows * row * q_.activation_bytes;
  }

  // Of a layer of two micro-batches: one is attended to, the next one comes.
  double CacheBuffers(const OffloadPolicy& policy) const {
    if (policy.attention_on_host || policy.cache_resident >= 1) return 0;
    return 2 * policy.micro_batch * cached_of_sequence_ / model_.num_layers *
           (1 - policy.cache_resident);
  }

  double StreamedSeconds(double rows, double flops_rate, double bytes_rate) const {
    return Roofed(model_.StreamedFlops(rows), model_.VisitedElements(rows) * format_.weight_bytes,
                  flops_rate, bytes_rate);
  }

  double ResidentSeconds(double rows) const {
    return Roofed(model_.token_flops * rows, model_.token_elements * format_.resident_bytes,
                  fast_flops_, q_.fast.bytes_per_second);
  }

  OffloadSeconds Linked(OffloadSeconds seconds, double up_bytes, double down_bytes) const {
    seconds.link_up = up_bytes / q_.slow.up_bytes_per_second;
    if (q_.down_bytes_per_second > 0) {
      seconds.link_down = down_bytes / q_.down_bytes_per_second;
    } else {
      seconds.link_up += down_bytes / q_.slow.up_bytes_per_second;
    }
    return seconds;
  }

  // Prompts are computed in the fast tier, and their keys and values go down.
  OffloadSeconds Prefill(const OffloadPolicy& policy) const {
    const double rows = policy.micro_batch * q_.prompt_tokens;
    const double scores = model_.PromptScoreFlops(q_.prompt_tokens) * policy.micro_batch;
    const OffloadSeconds seconds = {
        .fast =
            policy.num_micro_batches() *
            (StreamedSeconds(rows, fast_flops_, q_.fast.bytes_per_second) + ResidentSeconds(rows) +
             Roofed(scores, policy.micro_batch * cached_of_prompt_, fast_flops_,
                    q_.fast.bytes_per_second))};
    const double up = (1 - policy.weights_resident) *
                      model_.VisitedElements(policy.batch * q_.prompt_tokens) *
                      format_.weight_bytes;
    const double down = (1 - policy.cache_resident) * policy.batch * cached_of_prompt_;
    return Linked(seconds, up, down);
  }

  OffloadSeconds Step(const OffloadPolicy& policy) const {
    OffloadSeconds seconds;
    const double count = policy.num_micro_batches();
    double up = 0;
    double down = 0;
    seconds.fast = count * ResidentSeconds(policy.micro_batch);
    if (policy.experts_on_host) {
      seconds.host +=
          count * StreamedSeconds(policy.micro_batch, slow_flops_, q_.slow.bytes_per_second);
      const double rows = policy.batch * model_.num_layers * model_.hidden * q_.activation_bytes;
      up += rows;
      down += rows;
    } else {
      seconds.fast +=
          count * StreamedSeconds(policy.micro_batch, fast_flops_, q_.fast.bytes_per_second);
      up += (1 - policy.weights_resident) * model_.VisitedElements(policy.batch) *
            format_.weight_bytes;
    }
    const double scores = model_.ScoreFlops(context_) * policy.micro_batch;
    const double cached = cached_at_mean_ * policy.micro_batch;
    if (policy.attention_on_host) {
      seconds.host += count * Roofed(scores, cached, slow_flops_, q_.slow.bytes_per_second);
      up += policy.batch * model_.output_elements * q_.activation_bytes;
      down += policy.batch * (model_.query_elements * q_.activation_bytes + cached_of_token_);
    } else {
      seconds.fast += count * Roofed(scores, cached, fast_flops_, q_.fast.bytes_per_second);
      up += (1 - policy.cache_resident) * count * cached;
      down += (1 - policy.cache_resident) * policy.batch * cached_of_token_;
    }
    return Linked(seconds, up, down);
  }

  const OffloadQuestion& q_;
  const OffloadModel& model_;
  const OffloadFormat& format_;
  double streamed_bytes_;
  double resident_bytes_;
  double fast_flops_;
  double slow_flops_;  // 0: nothing computes there, and no policy wants it
  double context_;
  double longest_;
  double cached_at_mean_ = 0;      // of one sequence, as are the next
  double cached_of_sequence_ = 0;  // when it is complete
  double cached_of_prompt_ = 0;
  double cached_of_token_ = 0;
};

// The most sequences of the policy's micro-batch and shares that both tiers hold.
int MostBatch(const OffloadQuestion& question, const Pricing& pricing,
              const OffloadPolicy& policy) {
  double most = question.most_batch;
  const double fast = question.fast.bytes * kSlack - pricing.FastBytes(policy);
  if (fast < 0) return 0;
  const double fast_each = pricing.FastCacheBytes(policy);
  if (fast_each > 0) most = std::min(most, fast / fast_each);
  if (question.slow.bytes > 0) {
    const double slow = question.slow.bytes * kSlack - pricing.SlowBytes(policy);
    most = std::min(most, slow / pricing.SlowCacheBytes(policy));
  }
  return most < policy.micro_batch
             ? 0
             : static_cast<int>(most) / policy.micro_batch * policy.micro_batch;
}

struct Searched {
  std::optional<OffloadAnswer::Way> best;
  int num_tried = 0;
};

// Seconds per sequence of all resources together.
double BusySeconds(const OffloadQuestion& question, const OffloadPolicy& policy,
                   const OffloadFigures& figures) {
  return (figures.prefill.busy() + (question.gen_tokens - 1) * figures.step.busy()) / policy.batch;
}

bool IsBetter(const OffloadQuestion& question, const OffloadPolicy& policy,
              const OffloadFigures& figures, const OffloadAnswer::Way& best) {
  const double ratio = figures.tokens_per_second / best.figures.tokens_per_second;
  if (ratio > kSlack || ratio * kSlack < 1) return ratio > 1;
  const double busy = BusySeconds(question, policy, figures);
  const double best_busy = BusySeconds(question, best.policy, best.figures);
  if (busy * kSlack < best_busy || busy > best_busy * kSlack) return busy < best_busy;
  return policy.micro_batch < best.policy.micro_batch;
}

void Try(const OffloadQuestion& question, const Pricing& pricing, OffloadPolicy policy,
         Searched& searched) {
  ++searched.num_tried;
  policy.batch = MostBatch(question, pricing, policy);
  // Rounding may have let one too many in.
  while (policy.batch > 0 && !pricing.Figures(policy).fits) policy.batch -= policy.micro_batch;
  if (policy.batch <= 0) return;
  const OffloadFigures figures = pricing.Figures(policy);
  if (!searched.best || IsBetter(question, policy, figures, *searched.best)) {
    searched.best = {policy, figures};
  }
}

// The largest size, up to `largest`, of which so many micro-batches fit; 0: of none. The larger
// they are the fewer fit.
int LargestMicroBatch(const OffloadQuestion& question, const Pricing& pricing, OffloadPolicy policy,
                      int64_t count, int largest) {
  int fits = 0;
  for (int too_large = largest + 1; too_large - fits > 1;) {
    policy.micro_batch = fits + (too_large - fits) / 2;
    if (MostBatch(question, pricing, policy) >= count * policy.micro_batch) {
      fits = policy.micro_batch;
    } else {
      too_large = policy.micro_batch;
    }
  }
  return fits;
}

// For each number of micro-batches the largest size that fits: about twice the root of the most
// sequences.
void TryMicroBatches(const OffloadQuestion& question, const Pricing& pricing, OffloadPolicy policy,
                     Searched& searched) {
  int64_t count = 1;
  int largest = question.most_batch;
  while (true) {
    largest = LargestMicroBatch(question, pricing, policy, count, largest);
    if (largest == 0) return;
    policy.micro_batch = largest;
    Try(question, pricing, policy, searched);
    count = MostBatch(question, pricing, policy) / largest + 1;
  }
}

// Of one way, all micro-batches and shares that matter.
Searched SearchWay(const OffloadQuestion& question, const Pricing& pricing,
                   const OffloadPolicy& way) {
  Searched searched;
  const int steps = question.resident_steps;
  const int weight_steps = way.experts_on_host ? 0 : steps;
  const int cache_steps = way.attention_on_host ? 0 : steps;
  for (int weights = 0; weights <= weight_steps; ++weights) {
    for (int cache = 0; cache <= cache_steps; ++cache) {
      OffloadPolicy policy = way;
      policy.weights_resident = double(weights) / steps;
      policy.cache_resident = double(cache) / steps;
      if (question.micro_batches.empty()) TryMicroBatches(question, pricing, policy, searched);
      for (const int micro_batch : question.micro_batches) {
        policy.micro_batch = micro_batch;
        Try(question, pricing, policy, searched);
      }
    }
  }
  return searched;
}

// What a policy takes of the fast tier at least, of all that may be chosen.
double LeastFastBytes(const OffloadQuestion& question, int micro_batch) {
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < question.formats.size(); ++i) {
    for (const double resident : {0, 1}) {
      const OffloadPolicy policy = {.batch = micro_batch,
                                    .micro_batch = micro_batch,
                                    .attention_on_host = question.slow_computes(),
                                    .weights_resident = resident,
                                    .format = static_cast<int>(i)};
      least = std::min(least, FiguresOf(question, policy).fast_bytes);
    }
  }
  return least;
}

Error NothingFits(const OffloadQuestion& question) {
  const int micro_batch =
      question.micro_batches.empty() ? 1 : *std::ranges::min_element(question.micro_batches);
  const std::string sequences = FormatCount(static_cast<uint64_t>(micro_batch), "sequence");
  const double least = LeastFastBytes(question, micro_batch);
  if (least > question.fast.bytes) {
    return ResourceExhausted(fmt::format(
        "{} has {}, and {} at a time need{} {} of it for what is not streamed, two layers of what "
        "is, and rows{}",
        question.fast.name, FormatBytes(static_cast<uint64_t>(question.fast.bytes)), sequences,
        micro_batch == 1 ? "s" : "", FormatBytes(static_cast<uint64_t>(least)),
        micro_batch == 1 ? "" : "; smaller micro-batches need less"));
  }
  return ResourceExhausted(
      fmt::format("{} has {}, which does not hold the weights and the keys and values of {}{}",
                  question.slow.name, FormatBytes(static_cast<uint64_t>(question.slow.bytes)),
                  sequences, micro_batch == 1 ? "" : ", the fewest of a micro-batch"));
}

}  // namespace

std::string_view NameOf(OffloadBound bound) {
  switch (bound) {
    case OffloadBound::kLinkUp:
      return "link up";
    case OffloadBound::kLinkDown:
      return "link down";
    case OffloadBound::kFast:
      return "fast tier";
    case OffloadBound::kHost:
      return "host";
  }
  return "";
}

double OffloadSeconds::longest() const {
  return std::max(std::max(link_up, link_down), std::max(fast, host));
}

OffloadBound OffloadSeconds::bound() const {
  const double most = longest();
  if (link_up >= most) return OffloadBound::kLinkUp;
  if (fast >= most) return OffloadBound::kFast;
  return host >= most ? OffloadBound::kHost : OffloadBound::kLinkDown;
}

OffloadFigures FiguresOf(const OffloadQuestion& question, const OffloadPolicy& policy) {
  return Pricing(question, question.formats[policy.format]).Figures(policy);
}

std::string DescribeWay(const OffloadQuestion& question, const OffloadPolicy& policy) {
  const bool all_resident = policy.weights_resident >= 1;
  return fmt::format("{}, attention {}, experts {}", question.formats[policy.format].name,
                     policy.attention_on_host ? "on the host" : "in the fast tier",
                     policy.experts_on_host ? "on the host"
                     : all_resident         ? "resident"
                                            : "streamed");
}

Result<OffloadAnswer> SearchOffloadPolicy(const OffloadQuestion& question) {
  CHECK(question.prompt_tokens > 0 && question.gen_tokens >= 1 && question.resident_steps >= 1);
  CHECK(question.slow.up_bytes_per_second > 0 && question.fast.bytes > 0);
  OffloadAnswer answer;
  bool found = false;
  for (size_t format = 0; format < question.formats.size(); ++format) {
    const Pricing pricing(question, question.formats[format]);
    for (const bool attention_on_host : {true, false}) {
      for (const bool experts_on_host : {false, true}) {
        if ((attention_on_host || experts_on_host) && !question.slow_computes()) continue;
        const OffloadPolicy way = {.attention_on_host = attention_on_host,
                                   .experts_on_host = experts_on_host,
                                   .format = static_cast<int>(format)};
        const Searched searched = SearchWay(question, pricing, way);
        answer.num_tried += searched.num_tried;
        answer.ways.push_back(searched.best.value_or(OffloadAnswer::Way{way, {}}));
        if (!searched.best) continue;
        const OffloadFigures& figures = searched.best->figures;
        if (found && figures.tokens_per_second <= answer.figures.tokens_per_second * kSlack) {
          continue;
        }
        answer.policy = searched.best->policy;
        answer.figures = figures;
        found = true;
      }
    }
  }
  if (!found) return NothingFits(question);
  return answer;
}

}  // namespace convene::planner
