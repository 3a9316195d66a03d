// A rank of a job under mpirun, for the tests beside it. What it does is its first argument:
// check           all that groups must do
// loop            exchanges of 1 MB without end, after a line "rank 1 pid 4711" each
// idle RANK       as loop, but one rank stays out of it, computing
// leave RANK      one rank ends without the exchange that the others wait for
// disagree RANK   one rank fails before it loads anything, and all say so
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "base/check.h"
#include "comm/agree.h"
#include "comm/connect.h"
#include "tests/comm/group_checks.h"

namespace convene::comm {
namespace {

void Loop(Group& group) {
  const std::vector<std::byte> out(1'000'000, std::byte{1});
  std::vector<std::vector<std::byte>> in(group.size(), out);
  const std::vector<std::span<const std::byte>> send(group.size(), out);
  const std::vector<std::span<std::byte>> receive(in.begin(), in.end());
  for (int layer = 0;; ++layer) {
    group.Wait(*group.StartAllToAll(0, send, receive, fmt::format("dispatch of layer {}", layer)));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

int Main(const std::string& work, int chosen) {
  Result<std::unique_ptr<Group>> connected = Connect();
  if (!connected) {
    std::fputs((connected.error().message + "\n").c_str(), stderr);
    return 2;
  }
  Group& group = **connected;
  const bool is_chosen = group.rank() == chosen;
  if (work == "check") {
    CheckGroup(group);
    if (group.rank() == 0) std::puts(fmt::format("{} ranks agree", group.size()).c_str());
    return 0;
  }
  if (work == "loop" || work == "idle") {
    std::puts(fmt::format("rank {} pid {}", group.rank(), getpid()).c_str());
    std::fflush(stdout);
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (work == "idle" && is_chosen && std::chrono::steady_clock::now() < end) continue;
    Loop(group);
  }
  if (work == "leave") {
    if (!is_chosen) group.Barrier("loading");
    return is_chosen ? 0 : 3;
  }
  if (work == "disagree") {
    const Status mine = is_chosen ? Status(Error{"the disk is empty"}) : Status();
    const Status all = AgreeOnSuccess(group, mine);
    if (!all.ok()) std::fputs((all.error().message + "\n").c_str(), stderr);
    return all.ok() ? 0 : 4;
  }
  CHECK(false, "unknown work {}", work);
}

}  // namespace
}  // namespace convene::comm

int main(int argc, char** argv) {
  return convene::comm::Main(argc > 1 ? argv[1] : "check", argc > 2 ? std::stoi(argv[2]) : -1);
}
