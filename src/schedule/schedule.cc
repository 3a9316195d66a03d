#include "schedule/schedule.h"

#include <fmt/format.h>

#include <array>
#include <iterator>

namespace convene::schedule {
namespace {

constexpr std::array<std::string_view, kNumLaneKinds> kLaneNames = {
    "compute", "host", "send", "receive", "load", "store", "stage"};

constexpr std::array<std::string_view, kNumSizeKinds> kSizeNames = {
    "one",           "rows",
    "tokens",        "keys",
    "cached",        "expanded_tokens",
    "expanded_keys", "expanded_cached",
    "input_keys",    "input_cached",
    "wanted",        "sent",
    "returned",      "slots",
    "experts"};

void AppendSize(const Size& size, std::string& text) {
  fmt::format_to(std::back_inserter(text), "{}", Name(size.kind));
  std::string where;
  if (size.wanted) where += " wanted";
  if (size.layer >= 0) where += fmt::format(" L{}", size.layer);
  if (size.micro_batch >= 0) where += fmt::format(" m{}", size.micro_batch);
  if (size.chunk >= 0) where += fmt::format(" c{}", size.chunk);
  if (size.from >= 0) where += fmt::format(" r{}", size.from);
  if (size.to >= 0) where += fmt::format(" to r{}", size.to);
  if (!where.empty()) text += fmt::format("({})", where.substr(1));
}

void AppendAmount(std::string_view name, const Amount& amount, std::string& text) {
  if (amount.empty()) return;
  text += text.empty() ? "" : ", ";
  text += name;
  std::string_view separator = " ";
  for (const Term& term : amount) {
    text += separator;
    separator = " + ";
    fmt::format_to(std::back_inserter(text), "{}", term.factor);
    if (term.size.kind == SizeKind::kOne) {
      if (term.size.to >= 0) text += fmt::format(" to r{}", term.size.to);
      continue;
    }
    text += '*';
    AppendSize(term.size, text);
  }
}

std::string ToText(const Work& work) {
  std::string text;
  AppendAmount("flops", work.flops, text);
  AppendAmount("memory", work.memory_bytes, text);
  AppendAmount("link", work.link_bytes, text);
  AppendAmount("disk", work.disk_bytes, text);
  return text;
}

}  // namespace

std::string_view Name(LaneKind kind) { return kLaneNames.at(static_cast<size_t>(kind)); }
std::string_view Name(SizeKind kind) { return kSizeNames.at(static_cast<size_t>(kind)); }

std::string Label(const Task& task) {
  std::string text(Name(task.kind));
  if (task.encoder) text += " encoder";
  if (task.layer >= 0) text += fmt::format(" L{}", task.layer);
  if (task.block == Block::kCross) text += " cross";
  if (task.block == Block::kDense) text += " dense";
  if (task.micro_batch >= 0) text += fmt::format(" m{}", task.micro_batch);
  if (task.chunk >= 0) text += fmt::format(" c{}", task.chunk);
  return text;
}

std::string ToText(const Schedule& schedule, bool with_work) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const Task& task : schedule.tasks) {
    fmt::format_to(out, "r{} {} {}", task.lane.rank, Name(task.lane.kind), Label(task));
    if (task.collective >= 0) fmt::format_to(out, " #{}", task.collective);
    std::string_view separator = " <- ";
    for (const TaskId id : task.after) {
      const Task& before = schedule.tasks.at(id);
      fmt::format_to(out, "{}r{} {}", separator, before.lane.rank, Label(before));
      separator = ", ";
    }
    const std::string work = with_work ? ToText(task.work) : "";
    if (!work.empty()) fmt::format_to(out, " : {}", work);
    text += '\n';
  }
  return text;
}

}  // namespace convene::schedule
