#include "drawing/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "base/json.h"
#include "drawing/role_names.h"

namespace convene::drawing {
namespace {

using schedule::Amount;
using schedule::Block;
using schedule::kNumLaneKinds;
using schedule::Task;
using schedule::Work;

constexpr int kVersion = 1;
constexpr int kFirstPredicted = 1000;  // number of the process that has rank 0's predicted times
constexpr int kMaxRanks = kFirstPredicted;
constexpr int kMaxCoordinate = 1 << 20;  // of layers, micro-batches and chunks

using Json = nlohmann::json;

// The value of an amount without sizes that routing decides.
std::optional<double> ConstantValue(const Amount& amount) {
  double value = 0;
  for (const schedule::Term& term : amount) {
    if (term.size.kind != schedule::SizeKind::kOne) return std::nullopt;
    value += term.factor;
  }
  return value;
}

struct NamedAmount {
  const char* name;
  Amount Work::*amount;
};
constexpr NamedAmount kAmounts[] = {{"flops", &Work::flops},
                                    {"memory_bytes", &Work::memory_bytes},
                                    {"link_bytes", &Work::link_bytes},
                                    {"disk_bytes", &Work::disk_bytes}};

Json ToJson(const Task& task) {
  Json object = {
      {"kind", Name(task.kind)}, {"rank", task.lane.rank}, {"lane", Name(task.lane.kind)}};
  if (task.layer >= 0) object["layer"] = task.layer;
  if (task.micro_batch >= 0) object["micro_batch"] = task.micro_batch;
  if (task.chunk >= 0) object["chunk"] = task.chunk;
  if (task.encoder) object["encoder"] = true;
  if (task.block == Block::kCross) object["cross"] = true;
  if (task.block == Block::kDense) object["dense"] = true;
  if (task.collective >= 0) object["collective"] = task.collective;
  if (!task.after.empty()) object["after"] = task.after;
  for (const NamedAmount& named : kAmounts) {
    const std::optional<double> value = ConstantValue(task.work.*named.amount);
    if (value && *value != 0) object[named.name] = *value;
  }
  return object;
}

struct NamedPart {
  const char* name;
  double TracedParts::*part;
};
constexpr NamedPart kParts[] = {{"weight_bytes", &TracedParts::weight_bytes},
                                {"groups", &TracedParts::groups},
                                {"score_flops", &TracedParts::score_flops},
                                {"cache_bytes", &TracedParts::cache_bytes}};

// Events of one line each, so that a trace can be read and compared as text.
class Writer {
 public:
  std::string Write(const Trace& trace) && {
    text_ = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
    NameLanes(trace);
    for (size_t step = 0; step < trace.steps.size(); ++step) {
      const TracedStep& traced = trace.steps[step];
      AddEvents(traced, step, traced.measured, 0);
      AddEvents(traced, step, traced.predicted, kFirstPredicted);
    }
    text_ += fmt::format("\n], \"otherData\": {{\"convene_trace\": {}, ", kVersion);
    if (!trace.weights.empty()) text_ += fmt::format("\"weights\": {}, ", Quoted(trace.weights));
    if (trace.int8_kv) text_ += "\"kv_cache\": \"int8\", ";
    if (trace.num_threads > 0) text_ += fmt::format("\"threads\": {}, ", trace.num_threads);
    if (!trace.run.empty()) text_ += fmt::format("\"run\": {}, ", Quoted(trace.run));
    text_ += "\"steps\": [";
    std::string_view separator = "\n";
    for (const TracedStep& step : trace.steps) {
      text_ += separator;
      separator = ",\n";
      AddStep(step);
    }
    text_ += "\n]}}\n";
    return std::move(text_);
  }

 private:
  void AddLine(std::string_view line) {
    text_ += std::exchange(first_line_, false) ? "\n" : ",\n";
    text_ += line;
  }

  void NameLanes(const Trace& trace) {
    for (const int first : {0, kFirstPredicted}) {
      int num_ranks = 0;
      std::vector<bool> used;          // by rank and lane
      std::vector<std::string> roles;  // by rank
      for (const TracedStep& step : trace.steps) {
        if ((first == 0 ? step.measured : step.predicted).tasks.empty()) continue;
        num_ranks = std::max(num_ranks, step.schedule.num_ranks);
        used.resize(num_ranks * kNumLaneKinds);
        roles.resize(static_cast<size_t>(num_ranks));
        const std::vector<std::string> names = RoleNames(step.schedule);
        std::copy(names.begin(), names.end(), roles.begin());
        for (const Task& task : step.schedule.tasks) {
          used[task.lane.rank * kNumLaneKinds + static_cast<int>(task.lane.kind)] = true;
        }
      }
      for (int rank = 0; rank < num_ranks; ++rank) {
        AddLine(fmt::format(
            R"({{"ph": "M", "name": "process_name", "pid": {}, "args": {{"name": "{}{}"}}}})",
            first + rank, RankName(rank, roles[rank]), first == 0 ? "" : ", predicted"));
        // Of each rank the predicted times above the measured ones.
        AddLine(fmt::format(
            R"({{"ph": "M", "name": "process_sort_index", "pid": {}, "args": {{"sort_index": {}}}}})",
            first + rank, 2 * rank + (first == 0 ? 1 : 0)));
        for (int lane = 0; lane < kNumLaneKinds; ++lane) {
          if (!used[rank * kNumLaneKinds + lane]) continue;
          AddLine(fmt::format(
              R"({{"ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "args": {{"name": "{}"}}}})",
              first + rank, lane, Name(static_cast<schedule::LaneKind>(lane))));
        }
      }
    }
  }

  void AddEvents(const TracedStep& step, size_t step_idx, const schedule::Timeline& timeline,
                 int first) {
    if (timeline.tasks.empty()) return;
    CHECK(timeline.tasks.size() == step.schedule.tasks.size());
    for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
      const schedule::TaskTime& time = timeline.tasks[id];
      if (time.end < time.start) continue;
      const Task& task = step.schedule.tasks[id];
      AddLine(fmt::format(
          R"({{"ph": "X", "name": "{}", "cat": "{}", "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, )"
          R"("args": {{"step": {}, "task": {}}}}})",
          Label(task), Name(task.kind), first + task.lane.rank, static_cast<int>(task.lane.kind),
          (step.start + time.start) * 1e6, time.seconds() * 1e6, step_idx, id));
    }
  }

  static std::string Quoted(const std::string& text) {
    return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
  }

  void AddStep(const TracedStep& step) {
    fmt::format_to(std::back_inserter(text_), R"({{"name": {}, "start": {}, "ranks": {}, )",
                   Quoted(step.name), step.start, step.schedule.num_ranks);
    if (!step.predicted_by.empty()) {
      fmt::format_to(std::back_inserter(text_), R"("predicted_by": {}, )",
                     Quoted(step.predicted_by));
    }
    if (step.has_speed()) {
      fmt::format_to(std::back_inserter(text_),
                     R"("read_bytes_per_s": {}, "dot_operations_per_s": {}, )",
                     step.read_bytes_per_second, step.dot_operations_per_second);
    }
    if (!step.expert_tokens.empty()) {
      text_ += "\"expert_tokens\": " + Json(step.expert_tokens).dump() + ", ";
    }
    text_ += "\"tasks\": [";
    CHECK(step.sent_bytes.empty() || step.sent_bytes.size() == step.schedule.tasks.size());
    CHECK(step.parts.empty() || step.parts.size() == step.schedule.tasks.size());
    std::string_view separator = "\n";
    for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
      const Task& task = step.schedule.tasks[id];
      text_ += separator;
      separator = ",\n";
      Json object = ToJson(task);
      if (!step.sent_bytes.empty() && IsCollective(task.kind)) {
        object["sent_bytes"] = step.sent_bytes[id];
      }
      for (const NamedPart& named : kParts) {
        const double value = step.parts.empty() ? 0 : step.parts[id].*named.part;
        if (value > 0) object[named.name] = value;
      }
      text_ += object.dump();
    }
    text_ += "\n]}";
  }

  std::string text_;
  bool first_line_ = true;
};

// The first thing that is wrong is kept, and reading goes on harmlessly to its end.
class Reader {
 public:
  Result<Trace> Read(const Json& document) && {
    const Json& other = Member(document, "otherData");
    if (Number(other, "convene_trace", 0) != kVersion) {
      return Error{fmt::format(
          "not a trace of convene of version {}: otherData.convene_trace is missing or another one",
          kVersion)};
    }
    if (Member(other, "weights").is_string()) {
      trace_.weights = Member(other, "weights").get<std::string>();
    }
    trace_.int8_kv = Member(other, "kv_cache") == "int8";
    trace_.num_threads = Integer(other, "threads", 0, kMaxCoordinate);
    if (Member(other, "run").is_string()) trace_.run = Member(other, "run").get<std::string>();
    for (const Json& step : List(other, "steps")) ReadStep(step);
    for (const Json& event : List(document, "traceEvents")) {
      if (error_.empty()) ReadEvent(event);
    }
    if (error_.empty()) CheckRanks();
    for (size_t i = 0; i < trace_.steps.size() && error_.empty(); ++i) {
      const Status status = schedule::Validate(trace_.steps[i].schedule);
      if (!status.ok()) Fail(fmt::format("step {}: {}", i, status.error().message));
    }
    if (!error_.empty()) return Error{"trace: " + error_};
    return std::move(trace_);
  }

 private:
  void Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }

  static const Json& Member(const Json& object, const char* name) {
    static const Json null;
    if (!object.is_object()) return null;
    const auto it = object.find(name);
    return it == object.end() ? null : *it;
  }

  const Json& List(const Json& object, const char* name) {
    static const Json empty = Json::array();
    const Json& member = Member(object, name);
    if (member.is_array()) return member;
    Fail(fmt::format("there is no list \"{}\"", name));
    return empty;
  }

  double Number(const Json& object, const char* name, double otherwise) {
    const Json& member = Member(object, name);
    if (member.is_null()) return otherwise;
    if (member.is_number() && std::isfinite(member.get<double>())) return member.get<double>();
    Fail(fmt::format("\"{}\" is not a number", name));
    return otherwise;
  }

  // Per second; 0: not known.
  double Speed(const Json& object, const char* name) {
    const double value = Number(object, name, 0);
    if (value == 0 || (value >= 1 && value <= 1e18)) return value;
    Fail(fmt::format("\"{}\" is no speed of a machine: {}", name, value));
    return 0;
  }

  // Of a clock: what no run lasts would only make charts of nothing.
  double Time(const Json& object, const char* name, double per_second) {
    const double value = Number(object, name, 0);
    if (value >= 0 && value <= 1e9 * per_second) return value / per_second;
    Fail(fmt::format("\"{}\" is no time of a run: {}", name, value));
    return 0;
  }

  // Where it is absent, `otherwise`, which need not be from 0 to `most`.
  int Integer(const Json& object, const char* name, int otherwise, int most = 1'000'000'000) {
    const Json& member = Member(object, name);
    if (member.is_null()) return otherwise;
    const double value = member.is_number_integer() ? member.get<double>() : -1;
    if (value >= 0 && value <= most) return static_cast<int>(value);
    Fail(fmt::format("\"{}\" is no whole number from 0 to {}", name, most));
    return otherwise;
  }

  template <typename Kind>
  Kind Named(const Json& object, const char* name, int num_kinds) {
    const Json& member = Member(object, name);
    for (int i = 0; member.is_string() && i < num_kinds; ++i) {
      if (Name(static_cast<Kind>(i)) == member.get_ref<const std::string&>()) {
        return static_cast<Kind>(i);
      }
    }
    Fail(fmt::format("a task's \"{}\" is not one that this version knows", name));
    return Kind{};
  }

  // Ranks take memory in all that is made of a step, and of the text nothing. A step may have fewer
  // tasks than ranks (experts that few of them load), but others of the same run have more.
  void CheckRanks() {
    size_t ranks = 0;
    size_t tasks = 0;
    for (const TracedStep& step : trace_.steps) {
      ranks += static_cast<size_t>(step.schedule.num_ranks);
      tasks += step.schedule.tasks.size();
    }
    if (ranks > kMaxRanks + tasks) {
      Fail(fmt::format("its steps have {} ranks in all, and {} tasks: more than {} ranks have none",
                       ranks, tasks, kMaxRanks));
    }
  }

  void ReadStep(const Json& object) {
    TracedStep& step = trace_.steps.emplace_back();
    const Json& name = Member(object, "name");
    if (name.is_string()) step.name = name.get<std::string>();
    const Json& predicted_by = Member(object, "predicted_by");
    if (predicted_by.is_string()) step.predicted_by = predicted_by.get<std::string>();
    if (!Member(object, "expert_tokens").is_null()) ReadExpertTokens(object, step);
    step.start = Time(object, "start", 1);
    step.read_bytes_per_second = Speed(object, "read_bytes_per_s");
    step.dot_operations_per_second = Speed(object, "dot_operations_per_s");
    step.schedule.num_ranks = Integer(object, "ranks", 1);
    if (step.schedule.num_ranks < 1 || step.schedule.num_ranks > kMaxRanks) {
      Fail(fmt::format("{} ranks are not 1 to {}", step.schedule.num_ranks, kMaxRanks));
    }
    for (const Json& task : List(object, "tasks")) {
      if (error_.empty()) step.schedule.tasks.push_back(ReadTask(task));
      ReadSentBytes(task, step);
      ReadParts(task, step);
    }
    if (!step.sent_bytes.empty()) step.sent_bytes.resize(step.schedule.tasks.size());
    // Parts of nothing are not written, and a step of moves has no others.
    const bool only_moves =
        std::ranges::all_of(step.schedule.tasks, [](const schedule::Task& task) {
          return task.kind == schedule::TaskKind::kMoveExperts ||
                 task.kind == schedule::TaskKind::kLoadExperts;
        });
    if (!step.parts.empty() || only_moves) step.parts.resize(step.schedule.tasks.size());
  }

  // Of the task that was read last; without such members nobody has counted.
  void ReadSentBytes(const Json& task, TracedStep& step) {
    if (!error_.empty() || Member(task, "sent_bytes").is_null()) return;
    const double bytes = Number(task, "sent_bytes", 0);
    if (bytes < 0 || bytes > 1e18) return Fail("\"sent_bytes\" is no number of bytes");
    step.sent_bytes.resize(step.schedule.tasks.size());
    step.sent_bytes.back() = static_cast<int64_t>(bytes);
  }

  // Likewise.
  void ReadParts(const Json& task, TracedStep& step) {
    if (!error_.empty()) return;
    TracedParts parts;
    for (const NamedPart& named : kParts) {
      const double value = Number(task, named.name, 0);
      if (value < 0) Fail(fmt::format("\"{}\" is less than nothing: {}", named.name, value));
      parts.*named.part = value;
    }
    if (parts == TracedParts{}) return;
    step.parts.resize(step.schedule.tasks.size());
    step.parts.back() = parts;
  }

  void ReadExpertTokens(const Json& object, TracedStep& step) {
    for (const Json& layer : List(object, "expert_tokens")) {
      std::vector<int64_t>& tokens = step.expert_tokens.emplace_back();
      if (!layer.is_array()) return Fail("\"expert_tokens\" has something that is no list");
      for (const Json& count : layer) {
        const bool fits =
            count.is_number_integer() && count.get<double>() >= 0 && count.get<double>() <= 1e15;
        if (!fits) return Fail("\"expert_tokens\" has something that is no number of tokens");
        tokens.push_back(count.get<int64_t>());
      }
    }
  }

  Task ReadTask(const Json& object) {
    Task task;
    task.kind = Named<schedule::TaskKind>(object, "kind", schedule::kNumTaskKinds);
    task.lane = {Integer(object, "rank", -1),
                 Named<schedule::LaneKind>(object, "lane", kNumLaneKinds)};
    task.layer = Integer(object, "layer", -1, kMaxCoordinate);
    task.micro_batch = Integer(object, "micro_batch", -1, kMaxCoordinate);
    task.chunk = Integer(object, "chunk", -1, kMaxCoordinate);
    task.encoder = Member(object, "encoder") == Json(true);
    if (Member(object, "cross") == Json(true)) task.block = Block::kCross;
    if (Member(object, "dense") == Json(true)) task.block = Block::kDense;
    task.collective = Integer(object, "collective", -1);
    if (!Member(object, "after").is_null()) {
      for (const Json& id : List(object, "after")) {
        const bool small = id.is_number_integer() && std::abs(id.get<double>()) <= 1e9;
        if (!small) Fail("\"after\" has something that is no task");
        task.after.push_back(small ? id.get<schedule::TaskId>() : -1);
      }
    }
    for (const NamedAmount& named : kAmounts) {
      const double value = Number(object, named.name, 0);
      if (value < 0) Fail(fmt::format("\"{}\" is less than nothing: {}", named.name, value));
      if (value > 0) task.work.*named.amount = schedule::Constant(value);
    }
    return task;
  }

  void ReadEvent(const Json& event) {
    const Json& args = Member(event, "args");
    if (Member(event, "ph") != Json("X") || Member(args, "task").is_null()) return;
    const int step_idx = Integer(args, "step", -1);
    const int id = Integer(args, "task", -1);
    if (step_idx < 0 || step_idx >= static_cast<int>(trace_.steps.size()) || id < 0 ||
        id >= static_cast<int>(trace_.steps[step_idx].schedule.tasks.size())) {
      return Fail(
          fmt::format("an event is of task {} of step {}, which is not there", id, step_idx));
    }
    TracedStep& step = trace_.steps[step_idx];
    schedule::Timeline& timeline =
        Integer(event, "pid", 0) >= kFirstPredicted ? step.predicted : step.measured;
    timeline.tasks.resize(step.schedule.tasks.size());
    const double start = Time(event, "ts", 1e6) - step.start;
    const double seconds = Time(event, "dur", 1e6);
    // What the load lane reads first may be read before the step begins. Traces round to
    // nanoseconds.
    const bool may_be_ahead = step.schedule.tasks[id].lane.kind == schedule::LaneKind::kLoad;
    if (!may_be_ahead && start < -1e-8 * (1 + step.start)) {
      return Fail(fmt::format("an event of task {} starts before its step", id));
    }
    timeline.tasks[id] = {start, start + seconds};
  }

  Trace trace_;
  std::string error_;
};

}  // namespace

std::string TraceJson(const Trace& trace) { return Writer().Write(trace); }

Result<Trace> TraceFromJson(std::string_view text) {
  const Result<Json> document = ParseJson(text);
  if (!document.ok()) return Error{"trace: " + document.error().message};
  return Reader().Read(*document);
}

schedule::Schedule WithAmounts(schedule::Schedule schedule,
                               const std::function<double(const schedule::Size&)>& value_of) {
  for (Task& task : schedule.tasks) {
    for (const NamedAmount& named : kAmounts) {
      Amount& amount = task.work.*named.amount;
      double value = 0;
      for (const schedule::Term& term : amount) {
        value += term.size.kind == schedule::SizeKind::kOne ? term.factor
                                                            : term.factor * value_of(term.size);
      }
      amount = value == 0 ? Amount{} : schedule::Constant(value);
    }
  }
  return schedule;
}

}  // namespace convene::drawing
