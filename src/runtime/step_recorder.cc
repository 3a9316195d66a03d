#include "runtime/step_recorder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

#include "comm/agree.h"

namespace convene::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Of which the fastest counts.
constexpr int kClockLooks = 20;

int64_t Nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// One look of rank 0 at another rank's clock; all ranks call it. What `there` shows is of use on
// rank 0 only.
struct Look {
  int64_t before = 0;
  int64_t there = 0;
  int64_t after = 0;
};
Look LookAtClock(comm::Group& group, int other) {
  const auto pass = [&](int from, int to, int64_t* value) {
    std::vector<std::span<const std::byte>> send(static_cast<size_t>(group.size()));
    std::vector<std::span<std::byte>> receive(send.size());
    if (group.rank() == from) send[to] = std::as_bytes(std::span(value, 1));
    if (group.rank() == to) receive[from] = std::as_writable_bytes(std::span(value, 1));
    const auto exchange =
        group.StartAllToAll(comm::kControlQueue, send, receive, "comparing clocks");
    while (!exchange->Test()) {
    }
  };
  Look look;
  int64_t ask = 0;
  look.before = Nanoseconds(Clock::now());
  pass(0, other, &ask);
  look.there = Nanoseconds(Clock::now());
  pass(other, 0, &look.there);
  look.after = Nanoseconds(Clock::now());
  return look;
}

}  // namespace

size_t StepRecorder::SizeHash::operator()(const schedule::Size& size) const {
  uint64_t hash = static_cast<uint64_t>(size.kind);
  for (const int part :
       {size.layer, size.chunk, size.from, size.to, size.micro_batch, int{size.wanted}}) {
    hash = (hash ^ static_cast<uint32_t>(part)) * 0x9e3779b97f4a7c15u;
  }
  return hash ^ (hash >> 32);
}

const std::vector<StepRecorder::Form>& StepRecorder::FormsOf(
    const std::shared_ptr<const schedule::Schedule>& shared_schedule) {
  for (const Known& known : known_) {
    if (known.schedule == shared_schedule) return known.forms;
  }
  if (known_.size() == kMostKnown) known_.pop_front();
  const schedule::Schedule& schedule = *shared_schedule;
  std::vector<Form>& forms = known_.emplace_back(Known{shared_schedule, {}}).forms;
  forms.resize(static_cast<size_t>(schedule.num_ranks));
  std::unordered_set<schedule::Size, SizeHash> seen;
  const auto add_sizes = [&](const schedule::Amount& amount) {
    for (const schedule::Term& term : amount) {
      if (term.size.kind == schedule::SizeKind::kOne || !seen.insert(term.size).second) continue;
      forms[term.size.from].sizes.push_back(term.size);
    }
  };
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const schedule::Task& task = schedule.tasks[id];
    forms[task.lane.rank].tasks.push_back(static_cast<schedule::TaskId>(id));
    add_sizes(task.work.flops);
    add_sizes(task.work.memory_bytes);
    add_sizes(task.work.link_bytes);
    add_sizes(task.work.disk_bytes);
  }
  return forms;
}

std::vector<int64_t> StepRecorder::NewCounts(
    const std::vector<std::vector<int64_t>>& expert_counts) {
  std::vector<int64_t> flat;
  for (const std::vector<int64_t>& layer : expert_counts) {
    flat.insert(flat.end(), layer.begin(), layer.end());
  }
  counted_.resize(flat.size());
  for (size_t i = 0; i < flat.size(); ++i) flat[i] -= std::exchange(counted_[i], flat[i]);
  return flat;
}

// Times, bytes and sizes, as the form has them.
std::vector<double> StepRecorder::Message(const Form& form, const Own& own) const {
  std::vector<double> message;
  message.reserve(NumNumbers(form));
  std::unordered_map<schedule::TaskId, uint64_t> sent;
  for (const auto& [task, bytes] : sent_) {
    sent[static_cast<schedule::TaskId>(task - own.schedule->tasks.data())] += bytes;
  }
  for (const schedule::TaskId id : form.tasks) {
    message.push_back(own.timeline->tasks[id].start);
    message.push_back(own.timeline->tasks[id].end);
    const auto it = sent.find(id);
    message.push_back(it == sent.end() ? 0 : static_cast<double>(it->second));
  }
  const std::unordered_map<schedule::Size, double, SizeHash> values(values_.begin(), values_.end());
  for (const schedule::Size& size : form.sizes) {
    const auto it = values.find(size);
    message.push_back(it == values.end() ? 0 : it->second);
  }
  return message;
}

void StepRecorder::CompareClocks() {
  const std::string own = comm::MachineName();
  const auto names = group_->AllGather(std::as_bytes(std::span(own)), "comparing clocks");
  offsets_.assign(names.size(), 0);
  for (int other = 1; other < num_ranks(); ++other) {
    if (names[other] == names[0]) continue;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < kClockLooks; ++i) {
      const Look look = LookAtClock(*group_, other);
      if (look.after - look.before >= least) continue;
      least = look.after - look.before;
      offsets_[other] = look.there - (look.before + least / 2);
    }
  }
}

RecordedStep StepRecorder::Gather(const Own& own) {
  if (num_ranks() > 1 && offsets_.empty()) CompareClocks();
  const std::vector<Form>& forms = FormsOf(own.schedule);
  std::vector<std::vector<double>> messages(forms.size());
  std::vector<std::vector<int64_t>> counts(forms.size());
  std::vector<int64_t> starts(forms.size(), 0);
  messages[rank()] = Message(forms[rank()], own);
  counts[rank()] = NewCounts(*own.expert_counts);
  starts[rank()] = Nanoseconds(own.start);
  const auto to_first = [&](auto& values, const auto& size_of) {
    std::vector<std::span<const std::byte>> send(forms.size());
    std::vector<std::span<std::byte>> receive(forms.size());
    if (rank() != 0) send[0] = std::as_bytes(std::span(values[rank()]));
    for (int other = 1; rank() == 0 && other < num_ranks(); ++other) {
      values[other].resize(size_of(other));
      receive[other] = std::as_writable_bytes(std::span(values[other]));
    }
    const auto exchange =
        group_->StartAllToAll(comm::kControlQueue, send, receive, "gathering times of a step");
    group_->Wait(*exchange);
  };
  if (num_ranks() > 1) {
    counts[rank()].push_back(std::exchange(sent_since_bytes_, 0));
    counts[rank()].push_back(starts[rank()]);
    to_first(messages, [&](int other) { return NumNumbers(forms[other]); });
    to_first(counts, [&](int) { return counts[0].size(); });
    if (rank() != 0) return {};
    for (int other = 0; other < num_ranks(); ++other) {
      starts[other] = counts[other].back() - offsets_[other];
    }
  }

  const int64_t first = *std::min_element(starts.begin(), starts.end());
  RecordedStep step{.schedule = own.schedule, .start = static_cast<double>(first) * 1e-9};
  step.timeline.tasks.resize(own.schedule->tasks.size());
  step.sent_bytes.resize(own.schedule->tasks.size());
  for (int other = 0; num_ranks() > 1 && other < num_ranks(); ++other) {
    step.sent_before_bytes += counts[other].rbegin()[1];
  }
  for (size_t other = 0; other < forms.size(); ++other) {
    const double later = static_cast<double>(starts[other] - first) * 1e-9;
    auto value = messages[other].begin();
    for (const schedule::TaskId id : forms[other].tasks) {
      const double start = *value++ + later;
      step.timeline.tasks[id] = {start, *value++ + later};
      step.sent_bytes[id] = static_cast<int64_t>(*value++);
      step.sent_before_bytes -= step.sent_bytes[id];
    }
    for (const schedule::Size& size : forms[other].sizes) step.sizes.push_back({size, *value++});
  }
  size_t place = 0;
  for (const std::vector<int64_t>& layer : *own.expert_counts) {
    std::vector<int64_t>& sums = step.expert_tokens.emplace_back(layer.size());
    for (int64_t& sum : sums) {
      for (const std::vector<int64_t>& of_rank : counts) sum += of_rank[place];
      ++place;
    }
  }
  return step;
}

}  // namespace convene::runtime
