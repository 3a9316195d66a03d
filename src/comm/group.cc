#include "comm/group.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "comm/sleeping_poll.h"

namespace convene::comm {
namespace {

std::span<const std::byte> BytesOf(const uint64_t& number) {
  return std::as_bytes(std::span(&number, 1));
}

std::span<std::byte> BytesOf(uint64_t& number) {
  return std::as_writable_bytes(std::span(&number, 1));
}

// Ends the program if the arguments of StartAllToAll cannot be right.
void CheckBuffers(const Group& group, int queue, std::span<const std::span<const std::byte>> send,
                  std::span<const std::span<std::byte>> receive) {
  CHECK(queue >= 0 && queue < kNumQueues, "queue {} of {}", queue, kNumQueues);
  CHECK(std::ssize(send) == group.size() && std::ssize(receive) == group.size(),
        "{} and {} buffers for {} ranks", send.size(), receive.size(), group.size());
  const int rank = group.rank();
  CHECK(send[rank].size() == receive[rank].size(), "{} bytes from rank {} to itself, {} expected",
        send[rank].size(), rank, receive[rank].size());
}

void CopyOwn(std::span<const std::byte> send, std::span<std::byte> receive) {
  if (send.empty() || send.data() == receive.data()) return;
  std::memcpy(receive.data(), send.data(), send.size());
}

}  // namespace

std::unique_ptr<Exchange> Group::StartAllToAll(int queue,
                                               std::span<const std::span<const std::byte>> send,
                                               std::span<const std::span<std::byte>> receive,
                                               std::string what) {
  CheckBuffers(*this, queue, send, receive);
  CopyOwn(send[rank()], receive[rank()]);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) sent_bytes_ += send[peer].size();
  }
  return StartMessages(queue, send, receive, std::move(what));
}

void Group::Wait(Exchange& exchange) {
  SleepingPoll poll;
  while (!exchange.Test()) poll.Pause();
}

void Group::Barrier(std::string what) {
  // A byte to and from everybody: who has them all knows that all are here.
  const std::vector<std::byte> from_here(size());
  std::vector<std::byte> from_there(size());
  std::vector<std::span<const std::byte>> send(size());
  std::vector<std::span<std::byte>> receive(size());
  for (int peer = 0; peer < size(); ++peer) {
    send[peer] = std::span(from_here).subspan(peer, 1);
    receive[peer] = std::span(from_there).subspan(peer, 1);
  }
  Wait(*StartAllToAll(kControlQueue, send, receive, std::move(what)));
}

void Group::Broadcast(int root, std::vector<std::byte>* bytes, std::string what) {
  CHECK(root >= 0 && root < size(), "rank {} of {}", root, size());
  std::vector<std::span<const std::byte>> send(size());
  std::vector<std::span<std::byte>> receive(size());
  uint64_t num_bytes = bytes->size();
  const auto exchange = [&](std::span<const std::byte> out, std::span<std::byte> in) {
    if (rank() == root) {
      for (int peer = 0; peer < size(); ++peer) send[peer] = peer == root ? send[peer] : out;
    } else {
      receive[root] = in;
    }
    Wait(*StartAllToAll(kControlQueue, send, receive, what));
  };
  exchange(BytesOf(std::as_const(num_bytes)), BytesOf(num_bytes));
  bytes->resize(num_bytes);
  exchange(*bytes, *bytes);
}

std::vector<std::vector<std::byte>> Group::AllGather(std::span<const std::byte> bytes,
                                                     std::string what) {
  const uint64_t num_bytes = bytes.size();
  std::vector<uint64_t> sizes(size());
  std::vector<std::span<const std::byte>> send(size(), BytesOf(num_bytes));
  std::vector<std::span<std::byte>> receive(size());
  for (int peer = 0; peer < size(); ++peer) receive[peer] = BytesOf(sizes[peer]);
  Wait(*StartAllToAll(kControlQueue, send, receive, what));

  std::vector<std::vector<std::byte>> gathered(size());
  send.assign(size(), bytes);
  for (int peer = 0; peer < size(); ++peer) {
    gathered[peer].resize(sizes[peer]);
    receive[peer] = gathered[peer];
  }
  Wait(*StartAllToAll(kControlQueue, send, receive, std::move(what)));
  return gathered;
}

}  // namespace convene::comm
