#include "planner/disaggregated_pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/units.h"

namespace convene::planner {
namespace {

using strategy::AttentionOrder;

// Of one micro-batch or chunk.
struct TaskSeconds {
  TaskSeconds(const DisaggregatedLines& lines, const DisaggregatedPipeline& pipeline, double rows)
      : attention(lines.attention.At(rows)),
        shared(lines.has_shared() ? lines.shared.At(rows) : 0),
        counts(lines.counts) {
    const double of_chunk = rows / pipeline.chunks;
    dispatch = lines.dispatch.At(of_chunk);
    experts = lines.experts.At(of_chunk);
    combine = lines.combine.At(of_chunk);
    if (!pipeline.dispatch_after_shared) return;
    attention += std::exchange(shared, 0);
  }

  double attention;
  double shared;
  double counts;
  double dispatch;
  double experts;
  double combine;
};

// What paths through the tasks are made of.
struct PathParts {
  double layer_of_attention;  // all micro-batches on the attention lane
  double layer_of_experts;    // all of them through the slowest lane of the expert stage
  double way;                 // of one micro-batch through a layer
  double step;  // from one micro-batch to the next within a layer, on whichever lane is slower
  // From the first micro-batch up to the last one, on its way, and then along the attention lane of
  // the next layer, which counts as the layer.
  double up_and_along;
};

// The longest path to the end of the last way, or to the end of the attention lane. Each layer but
// those at the ends is passed along a lane, or on the way of one micro-batch; who leaves the
// attention lane returns to it only by such a way, with the micro-batch where it left, so it can go
// up again only where it went along the lane meanwhile.
double LongestPath(const PathParts& parts, int num_layers, int micro_batches) {
  const double steady = std::max({parts.layer_of_attention, parts.layer_of_experts, parts.way});
  const double in_turns = parts.up_and_along + parts.way;
  const auto pass = [&](int layers) {
    const int pairs = layers / 2;
    return std::max(layers * steady, pairs * in_turns + (layers - 2 * pairs) * steady);
  };
  const double to_last_way = pass(num_layers - 1) + (micro_batches - 1) * parts.step + parts.way;
  double to_lane_end = num_layers * parts.layer_of_attention;
  if (num_layers >= 2) to_lane_end = std::max(to_lane_end, in_turns + pass(num_layers - 2));
  return std::max(to_last_way, to_lane_end);
}

}  // namespace

strategy::Pipeline ToPipeline(const DisaggregatedPipeline& pipeline) {
  strategy::Pipeline whole;
  whole.micro_batches = pipeline.micro_batches;
  whole.chunks = pipeline.chunks;
  whole.order = pipeline.order;
  whole.dispatch_after_shared = pipeline.dispatch_after_shared;
  return whole;
}

std::string WordsOfParts(int micro_batches, int chunks) {
  return fmt::format("{} micro-batch{} and {}", micro_batches, micro_batches == 1 ? "" : "es",
                     FormatCount(static_cast<uint64_t>(chunks), "chunk"));
}

std::string Words(const DisaggregatedPipeline& pipeline) {
  const std::string text = WordsOfParts(pipeline.micro_batches, pipeline.chunks);
  if (pipeline.dispatch_after_shared) return text + ", dispatch after the shared expert";
  return text + (pipeline.order == AttentionOrder::kAsas ? ", ASAS" : ", AASS");
}

double ClosedFormSeconds(const DisaggregatedLines& lines, const DisaggregatedPipeline& pipeline,
                         double rows) {
  const TaskSeconds task(lines, pipeline, rows);
  const int r1 = pipeline.micro_batches;
  const double chunk = std::max({task.dispatch, task.experts, task.combine});
  const double stage = std::max(task.counts + pipeline.chunks * task.dispatch,
                                pipeline.chunks * std::max(task.experts, task.combine));
  const bool alternates = pipeline.order == AttentionOrder::kAsas;
  const double between = task.attention + (alternates ? task.shared : 0);
  const double step = std::max(between, stage);
  const double along = alternates ? between : task.attention + r1 * task.shared;
  return LongestPath({.layer_of_attention = r1 * (task.attention + task.shared),
                      .layer_of_experts = r1 * stage,
                      .way = task.attention + task.counts + task.dispatch + task.experts +
                             task.combine + (pipeline.chunks - 1) * chunk,
                      .step = step,
                      .up_and_along = (r1 - 1) * step + along},
                     lines.num_layers, r1);
}

namespace {

struct BusyTime {
  double begin = 0;
  double end = 0;
};

// Seconds of `total` in which nothing of either list runs. Both are in order, and neither has two
// that overlap.
double IdleSeconds(double total, const std::vector<BusyTime>& first,
                   const std::vector<BusyTime>& second) {
  std::vector<BusyTime> all(first.size() + second.size());
  std::merge(first.begin(), first.end(), second.begin(), second.end(), all.begin(),
             [](const BusyTime& a, const BusyTime& b) { return a.begin < b.begin; });
  double busy = 0;
  double until = 0;
  for (const BusyTime& span : all) {
    busy += std::max(0.0, span.end - std::max(until, span.begin));
    until = std::max(until, span.end);
  }
  return total - busy;
}

class Lanes {
 public:
  Lanes(const DisaggregatedLines& lines, const DisaggregatedPipeline& pipeline, double rows)
      : task_(lines, pipeline, rows),
        pipeline_(pipeline),
        returned_(static_cast<size_t>(pipeline.micro_batches), 0),
        ready_(returned_) {}

  // Attention and shared experts of a layer, in order.
  void Attend() {
    const bool alternates = pipeline_.order == AttentionOrder::kAsas;
    for (size_t i = 0; i < ready_.size(); ++i) {
      attention_ = Run(std::max(attention_, returned_[i]), task_.attention, computes_);
      ready_[i] = attention_;
      if (alternates) attention_ = Run(attention_, task_.shared, computes_);
    }
    if (alternates) return;
    for (size_t i = 0; i < ready_.size(); ++i) {
      attention_ = Run(attention_, task_.shared, computes_);
    }
  }

  void Exchange() {
    for (size_t i = 0; i < ready_.size(); ++i) {
      send_ = std::max(send_, ready_[i]) + task_.counts;
      for (int chunk = 0; chunk < pipeline_.chunks; ++chunk) {
        send_ += task_.dispatch;
        experts_ = Run(std::max(experts_, send_), task_.experts, computes_experts_);
        receive_ = std::max(receive_, experts_) + task_.combine;
      }
      returned_[i] = receive_;
    }
  }

  LaneTimes Take() const {
    LaneTimes times{.seconds = std::max(attention_, receive_)};
    for (const BusyTime& span : computes_) times.attention_busy += span.end - span.begin;
    for (const BusyTime& span : computes_experts_) times.experts_busy += span.end - span.begin;
    times.exposed = IdleSeconds(times.seconds, computes_, computes_experts_);
    return times;
  }

 private:
  static double Run(double begin, double seconds, std::vector<BusyTime>& spans) {
    if (seconds > 0) spans.push_back({begin, begin + seconds});
    return begin + seconds;
  }

  TaskSeconds task_;
  const DisaggregatedPipeline& pipeline_;
  double attention_ = 0;  // when the lane is free, as the next
  double send_ = 0;
  double experts_ = 0;
  double receive_ = 0;
  std::vector<double> returned_;  // by micro-batch, of the layer before
  std::vector<double> ready_;     // by micro-batch: its rows may be sent
  std::vector<BusyTime> computes_;
  std::vector<BusyTime> computes_experts_;
};

}  // namespace

LaneTimes RunLanes(const DisaggregatedLines& lines, const DisaggregatedPipeline& pipeline,
                   double rows) {
  Lanes lanes(lines, pipeline, rows);
  for (int layer = 0; layer < lines.num_layers; ++layer) {
    lanes.Attend();
    lanes.Exchange();
  }
  return lanes.Take();
}

}  // namespace convene::planner
