#include "comm/share_cpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/digest.h"
#include "comm/agree.h"
#include "hardware/affinity.h"

namespace convene::comm {

void ShareCpusOfHost(Group& group) {
  std::vector<int> own;
  if (const Result<std::vector<int>> mask = hardware::CurrentAffinity()) own = *mask;
  const std::string machine = MachineName();
  const std::string host = fmt::format("{:x}", DigestOf(std::as_bytes(std::span(machine))));
  std::set<int> together;
  for (const std::string& told : GatherTexts(group, fmt::format("{} {}", host, fmt::join(own, " ")),
                                             "sharing the CPUs of hosts")) {
    std::istringstream words(told);
    std::string whose;
    words >> whose;
    if (whose != host) continue;
    for (int cpu = 0; words >> cpu;) together.insert(cpu);
  }
  if (together.size() == own.size()) return;
  // Refused, each rank divides what it has: slower, and right.
  static_cast<void>(hardware::SetAffinity({together.begin(), together.end()}).ok());
}

}  // namespace convene::comm
