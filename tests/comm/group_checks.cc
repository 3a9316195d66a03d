#include "tests/comm/group_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "base/check.h"
#include "comm/agree.h"

namespace convene::comm {
namespace {

std::vector<std::byte> Pattern(size_t size, int from, int to, int round) {
  std::vector<std::byte> bytes(size);
  uint32_t state = static_cast<uint32_t>(from * 1009 + to * 31 + round * 7 + 1);
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

// The buffers of one exchange and what must have arrived in the end.
struct Messages {
  std::vector<std::vector<std::byte>> out, in, expected;
  std::unique_ptr<Exchange> exchange;

  template <typename Size>  // (from, to) -> bytes
  Messages(Group& group, int queue, int round, Size size) {
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    for (int peer = 0; peer < group.size(); ++peer) {
      out.push_back(Pattern(size(group.rank(), peer), group.rank(), peer, round));
      expected.push_back(Pattern(size(peer, group.rank()), peer, group.rank(), round));
      in.emplace_back(expected.back().size());
    }
    for (int peer = 0; peer < group.size(); ++peer) {
      send.emplace_back(out[peer]);
      receive.emplace_back(in[peer]);
    }
    exchange = group.StartAllToAll(queue, send, receive, fmt::format("round {}", round));
  }

  void Check() const { CHECK(in == expected); }
};

}  // namespace

void CheckAllToAll(Group& group) {
  // Nothing at all, then ragged sizes with empty ones between, then one long message around.
  Messages nothing(group, 0, 0, [](int, int) { return 0; });
  group.Wait(*nothing.exchange);
  Messages ragged(group, 0, 1, [](int from, int to) {
    return (from + to) % 3 == 0 ? 0 : static_cast<size_t>(1 + from * 1000 + to * 37);
  });
  group.Wait(*ragged.exchange);
  CHECK(ragged.exchange->Test());
  ragged.Check();
  const int num_ranks = group.size();
  Messages longer(group, 1, 2, [num_ranks](int from, int to) {
    return (from + 1) % num_ranks == to ? size_t{(9 << 20) + 3} : size_t{0};
  });
  group.Wait(*longer.exchange);
  longer.Check();

  // Many under way on all queues, tested in an order that differs between ranks.
  std::vector<Messages> many;
  for (int round = 3; round < 33; ++round)
    many.emplace_back(group, round % kNumQueues, round, [round](int from, int to) {
      return static_cast<size_t>((from * 7 + to * 13 + round) % 11) * 3000;
    });
  for (size_t num_done = 0; num_done < many.size();) {
    num_done = 0;
    for (size_t i = 0; i < many.size(); ++i)
      num_done += many[(i + group.rank() * 5) % many.size()].exchange->Test();
  }
  for (const Messages& messages : many) messages.Check();

  // Destruction waits; a buffer that is sent to itself from where it lies stays as it is.
  {
    Messages(group, 2, 40, [](int, int) { return 100'000; }).exchange.reset();
  }
  std::vector<std::byte> own = Pattern(10, 0, 0, 41);
  std::vector<std::span<const std::byte>> send(num_ranks);
  std::vector<std::span<std::byte>> receive(num_ranks);
  send[group.rank()] = receive[group.rank()] = own;
  group.Wait(*group.StartAllToAll(0, send, receive, "to itself"));
  CHECK(own == Pattern(10, 0, 0, 41));

  // Ranks to and from whom nothing goes may stay away, and take part in the next exchange again.
  if (group.rank() < 2) {
    Messages of_two(group, 0, 42, [](int from, int to) { return from < 2 && to < 2 ? 7000 : 0; });
    group.Wait(*of_two.exchange);
    of_two.Check();
  }
  Messages of_all(group, 0, 43, [](int from, int to) { return size_t{500} * from + to; });
  group.Wait(*of_all.exchange);
  of_all.Check();
}

void CheckSentBytes(Group& group) {
  const auto others = static_cast<uint64_t>(group.size() - 1);
  uint64_t expected = group.sent_bytes();
  const auto size_of = [](int from, int to) { return size_t{100} * from + size_t{3000} * to; };
  for (int queue = 0; queue < kNumQueues; ++queue) {
    Messages messages(group, queue, 50 + queue, size_of);
    for (int to = 0; to < group.size(); ++to) {
      if (to != group.rank()) expected += size_of(group.rank(), to);
    }
    // Counted once, when it starts.
    CHECK(group.sent_bytes() == expected, "{} or {}", group.sent_bytes(), expected);
    group.Wait(*messages.exchange);
    CHECK(group.sent_bytes() == expected, "{} or {}", group.sent_bytes(), expected);
  }
  group.Barrier("a barrier");
  expected += others;
  CHECK(group.sent_bytes() == expected, "{} or {}", group.sent_bytes(), expected);
  std::vector<std::byte> bytes(1000);
  group.Broadcast(0, &bytes, "a broadcast");
  if (group.rank() == 0) expected += (sizeof(uint64_t) + bytes.size()) * others;
  CHECK(group.sent_bytes() == expected, "{} or {}", group.sent_bytes(), expected);
}

void CheckBlockingCalls(Group& group) {
  group.Barrier("a barrier");
  for (int root = 0; root < group.size(); ++root) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{100'000}}) {
      const std::vector<std::byte> sent = Pattern(size, root, root, 1);
      std::vector<std::byte> bytes = group.rank() == root ? sent : Pattern(5, 0, 0, 0);
      group.Broadcast(root, &bytes, "a broadcast");
      CHECK(bytes == sent);
    }
  }
  const auto size_of = [](int rank) {
    return static_cast<size_t>(rank) % 2 * 5000 + static_cast<size_t>(rank) * 3;
  };
  const auto gathered =
      group.AllGather(Pattern(size_of(group.rank()), group.rank(), 0, 2), "a gathering");
  CHECK(std::ssize(gathered) == group.size());
  for (int peer = 0; peer < group.size(); ++peer)
    CHECK(gathered[peer] == Pattern(size_of(peer), peer, 0, 2));
}

namespace {

void CheckAgreementOnDigests(Group& group) {
  const int rank = group.rank();
  const int last = group.size() - 1;
  CHECK(AgreeOnDigests(group, {}, "file").ok());
  // What only one has is nobody's business, and neither is the order.
  std::vector<NamedDigest> digests = {{"shared", 5}, {fmt::format("of {}", rank), 7u + rank}};
  if (rank == last) std::swap(digests[0], digests[1]);
  CHECK(AgreeOnDigests(group, digests, "file").ok());
  if (last == 0) return;

  const auto expect = [&](const NamedDigest& named, const std::string& message) {
    digests.push_back(named);
    const Status status = AgreeOnDigests(group, digests, "file");
    CHECK(!status.ok() && status.error().message.starts_with(message), "{}",
          status.ok() ? "no error" : status.error().message);
  };
  const std::string host = HostName();
  // The one that is alone is named; of two, the second.
  const int odd = last == 1 ? 1 : 0;
  const int other = odd == 0 ? 1 : 0;
  expect({"z.json", rank == odd ? 3u : 4u},
         fmt::format("file \"z.json\" differs between ranks: rank {} ({}) has another copy than "
                     "rank {} ({})",
                     odd, host, other, host));
  expect({"y.json", rank == odd ? 0u : 4u},
         fmt::format("file \"y.json\" differs between ranks: rank {} ({}) has none, unlike rank {}",
                     odd, host, other));
  expect({"x.json", rank == odd ? 9u : 0u},
         fmt::format("file \"x.json\" differs between ranks: rank {} ({}) has one, unlike rank {}",
                     odd, host, other));
}

}  // namespace

void CheckAgreement(Group& group) {
  CHECK(AgreeOnSuccess(group, {}).ok());
  const int last = group.size() - 1;
  const Status mine = group.rank() == last ? Status(Error{"no such file"}) : Status();
  const Status all = AgreeOnSuccess(group, mine);
  CHECK(!all.ok());
  const std::string prefix = last == 0 ? "" : fmt::format("rank {} ({}): ", last, HostName());
  CHECK(all.error().message == prefix + "no such file", "{}", all.error().message);
  for (const ErrorKind kind :
       {ErrorKind::kInvalidArgument, ErrorKind::kNotFound, ErrorKind::kResourceExhausted,
        ErrorKind::kUnavailable, ErrorKind::kDataLoss, ErrorKind::kInternal}) {
    const Status failed =
        AgreeOnSuccess(group, group.rank() == last ? Status(Error{"no", kind}) : Status());
    CHECK(!failed.ok() && failed.error().kind == kind, "kind {}", static_cast<int>(kind));
  }

  CHECK(AgreeOnSame(group, "0.1.0", "the version").ok());
  if (last > 0) {
    const Status same = AgreeOnSame(group, group.rank() == last ? "0.2.0" : "0.1.0", "the version");
    CHECK(!same.ok() && same.error().message.starts_with("the version differs between ranks: "));
    CHECK(same.error().message.find("has 0.2.0") != std::string::npos);
  }
  CheckAgreementOnDigests(group);
}

}  // namespace convene::comm
