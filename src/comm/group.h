// A set of ranks that exchange bytes: blocking calls for setting up, and non-blocking exchanges
// that the caller drives, so that they can run beside computation. What the bytes mean is the
// caller's matter (wire_format.h). Backends: solo/ (one rank), threads/ (ranks within one process,
// for tests) and mpi/.
//
// Every call is *collective*: all ranks of the group make it, in the same order on the same queue;
// of StartAllToAll those may be left out to and from whom nothing goes.
// A rank that has gone ends the whole job with a message (under_way.h), so calls return no
// errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace convene::comm {

// An exchange under way. Its buffers belong to it until Test has returned true or it is destroyed,
// which waits for it.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // Advances the exchange; true once it is complete, and ever after. Never blocks.
  virtual bool Test() = 0;
};

// Exchanges on different queues are independent of each other; on one queue they may be under way
// at the same time, too, and complete in any order, but all ranks start them in the same order.
inline constexpr int kNumQueues = 3;  // one for each lane that communicates, one for control
inline constexpr int kControlQueue = kNumQueues - 1;

class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // All-to-all-v: send[i] goes to rank i and arrives in receive[i], of the same size there; empty
  // ones move nothing. send[rank()] is copied to receive[rank()] unless both are empty or the same
  // memory. The spans of spans are copied, the bytes are not. `what` names the exchange in messages
  // about peers that have gone ("dispatch of layer 3").
  //
  // Not thread-safe: one thread at a time calls anything of a group, its exchanges included (which
  // thread may change).
  std::unique_ptr<Exchange> StartAllToAll(int queue,
                                          std::span<const std::span<const std::byte>> send,
                                          std::span<const std::span<std::byte>> receive,
                                          std::string what);

  // What each rank does, by rank, for messages about those that have gone ("experts"); empty where
  // there is nothing to say. Not collective.
  virtual void NameRoles(std::span<const std::string>) {}

  // The bytes that this rank has sent to other ranks, counted when an exchange starts. They do not
  // include what it sends to itself, nor what a network adds.
  uint64_t sent_bytes() const { return sent_bytes_; }

  // Waits with a poll that sleeps longer and longer, so that a waiting rank leaves its core to
  // others.
  void Wait(Exchange& exchange);

  // These three block, and use kControlQueue:
  void Barrier(std::string what);
  // Sends `bytes` of rank `root` to all others, where it is resized.
  void Broadcast(int root, std::vector<std::byte>* bytes, std::string what);
  // Returns the `bytes` of all ranks, in their order.
  std::vector<std::vector<std::byte>> AllGather(std::span<const std::byte> bytes, std::string what);

 protected:
  // For backends: StartAllToAll, whose arguments have been checked, without the message to itself,
  // which has been copied.
  virtual std::unique_ptr<Exchange> StartMessages(int queue,
                                                  std::span<const std::span<const std::byte>> send,
                                                  std::span<const std::span<std::byte>> receive,
                                                  std::string what) = 0;

 private:
  uint64_t sent_bytes_ = 0;
};

}  // namespace convene::comm
