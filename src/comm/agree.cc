#include "comm/agree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/read_file.h"

namespace convene::comm {
namespace {

std::vector<std::string> GatherTexts(Group& group, const std::string& mine, std::string what) {
  std::vector<std::string> texts;
  for (const auto& bytes : group.AllGather(std::as_bytes(std::span(mine)), std::move(what)))
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return texts;
}

}  // namespace

Status AgreeOnSuccess(Group& group, const Status& mine) {
  if (group.size() == 1) return mine;
  // Success is the empty text; an error has its rank before it and is never empty.
  const std::string text =
      mine.ok() ? ""
                : fmt::format("rank {} ({}): {}", group.rank(), HostName(), mine.error().message);
  for (std::string& theirs : GatherTexts(group, text, "agreeing on success"))
    if (!theirs.empty()) return Error{std::move(theirs)};
  return {};
}

Status AgreeOnSame(Group& group, const std::string& mine, const std::string& what) {
  if (group.size() == 1) return {};
  const std::vector<std::string> texts = GatherTexts(group, mine, "comparing " + what);
  const std::vector<std::string> hosts = GatherTexts(group, HostName(), "comparing " + what);
  for (int rank = 1; rank < group.size(); ++rank)
    if (texts[rank] != texts[0])
      return Error{fmt::format(
          "{} differs between ranks: rank 0 ({}) has {}, rank {} ({}) has {}; give all the same",
          what, hosts[0], texts[0], rank, hosts[rank], texts[rank])};
  return {};
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "unknown host";
  return name;
}

}  // namespace convene::comm
std::string MachineName() {
  constexpr uint64_t kMostBytes = 4096;
  const Result<std::string> boot = ReadFile("/proc/sys/kernel/random/boot_id", kMostBytes);
  return HostName() + " " + (boot ? *boot : "");
}

