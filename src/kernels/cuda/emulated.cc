#include "kernels/cuda/emulated.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#ifndef __x86_64__
#include <ucontext.h>
#endif

// The linker's, where any kernel has static shared memory.
extern "C" {
extern std::byte __start_emulated_shared[] __attribute__((weak));  // NOLINT
extern std::byte __stop_emulated_shared[] __attribute__((weak));   // NOLINT
}

namespace convene::kernels::cuda::emulated {
namespace {

constexpr int kMostThreads = 1024;
constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kGuardBytes = 4096;
constexpr size_t kMostSharedBytes = 227 << 10;
// Behind a block's dynamic shared memory, to find writes beyond it.
constexpr size_t kMarginBytes = 1024;
// Of every byte: NaN as float and as bf16, -1 as an integer.
constexpr int kUnwritten = 0xff;

// Where a fiber, or what runs the fibers, goes on.
#ifdef __x86_64__
using Context = void*;
extern "C" void ConveneSwitchFiber(Context* from, Context to);
// All that a function must preserve lies on the stack.
asm(R"(
.text
.globl ConveneSwitchFiber
.type ConveneSwitchFiber, @function
ConveneSwitchFiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ConveneSwitchFiber, . - ConveneSwitchFiber
)");
void Switch(Context& from, Context& to) { ConveneSwitchFiber(&from, to); }
void Prepare(Context& context, std::byte* stack, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack + kStackBytes);
  *--top = nullptr;  // entry finds the stack as if called
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context = top;
}
#else
using Context = ucontext_t;
void Switch(Context& from, Context& to) { swapcontext(&from, &to); }
void Prepare(Context& context, std::byte* stack, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}
#endif

enum class State : uint8_t { kReady, kAtBarrier, kInWarp, kEnded };

struct Copy {
  void* shared;
  const void* global;
  bool valid;
};

struct Thread {
  Context context = {};
  uint3 index = {};
  State state = State::kEnded;
  const char* waits_for = "";
  // In the warp:
  uint32_t mask = 0;
  bool needs_all_lanes = false;
  void* mine = nullptr;
  WarpFunction function = nullptr;
  // At the barrier: what it brought, then the sum.
  int sum = 0;
  std::vector<Copy> copies;              // not committed
  std::deque<std::vector<Copy>> groups;  // under way, in order
};

// A block that runs; blocks of all launches follow each other.
struct Block {
  std::mutex one_launch;
  std::byte* shared = nullptr;
  size_t shared_bytes = 0;
  std::vector<Thread> threads;
  int num_threads = 0;
  int running = 0;
  int num_alive = 0;
  int num_at_barrier = 0;
  Context scheduler = {};
  const std::function<void()>* body = nullptr;
  // Of threads between barriers and of blocks: each goes up or down as a bit of this says, so that
  // what has no order comes in both.
  uint64_t order = 0x9e3779b97f4a7c15;

  Thread& current() { return threads[running]; }
  bool NextIsUpward() {
    order = order * 6364136223846793005u + 1442695040888963407u;
    return order >> 63 != 0;
  }
};

Block& TheBlock() {
  static Block block;
  return block;
}

void Yield() {
  Block& block = TheBlock();
  Switch(block.current().context, block.scheduler);
}

// Lets the threads at the barrier go on, where all that have not ended have come.
void TryBarrier(Block& block) {
  if (block.num_alive == 0 || block.num_at_barrier < block.num_alive) return;
  int sum = 0;
  const char* name = nullptr;
  for (int i = 0; i < block.num_threads; ++i) {
    Thread& thread = block.threads[i];
    if (thread.state == State::kEnded) continue;
    CHECK(name == nullptr || std::string_view(name) == thread.waits_for,
          "threads of a block meet at {} and {}", name, thread.waits_for);
    name = thread.waits_for;
    sum += thread.sum;
  }
  for (int i = 0; i < block.num_threads; ++i) {
    Thread& thread = block.threads[i];
    if (thread.state != State::kAtBarrier) continue;
    thread.sum = sum;
    thread.state = State::kReady;
  }
  block.num_at_barrier = 0;
}

// Does what the lanes of `mask` of the warp wait for, where all that have not ended have come.
void TryWarp(Block& block, int first_thread, uint32_t mask) {
  void* lanes[32] = {};
  Thread* first = nullptr;
  bool all_lanes = true;
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    Thread* thread =
        first_thread + i < block.num_threads ? &block.threads[first_thread + i] : nullptr;
    if (thread == nullptr || thread->state == State::kEnded) {
      all_lanes = false;
      continue;
    }
    if (thread->state != State::kInWarp || thread->mask != mask) return;
    if (first == nullptr) first = thread;
    CHECK(std::string_view(first->waits_for) == thread->waits_for,
          "lanes of a warp meet at {} and {}", first->waits_for, thread->waits_for);
    lanes[i] = thread->mine;
  }
  if (first == nullptr) return;
  CHECK(all_lanes || !first->needs_all_lanes, "{} in a warp of which lanes have ended",
        first->waits_for);
  first->function(lanes);
  for (int i = 0; i < 32; ++i) {
    if (lanes[i] != nullptr) block.threads[first_thread + i].state = State::kReady;
  }
}

// A fiber is one thread after the other, of all blocks.
void Entry() {
  Block& block = TheBlock();
  for (;;) {
    (*block.body)();
    block.current().state = State::kEnded;
    --block.num_alive;
    Yield();
  }
}

[[noreturn]] void FailDeadlock(const Block& block) {
  std::map<std::string, std::vector<int>> waiting;
  for (int i = 0; i < block.num_threads; ++i) {
    const Thread& thread = block.threads[i];
    std::string what = "ended";
    if (thread.state == State::kAtBarrier) what = fmt::format("wait at {}", thread.waits_for);
    if (thread.state == State::kInWarp) {
      what = fmt::format("wait at {} with mask {:#x}", thread.waits_for, thread.mask);
    }
    waiting[what].push_back(i);
  }
  std::string message;
  for (const auto& [what, threads] : waiting) {
    message += fmt::format("; {} threads (the first is {}, the last {}) {}", threads.size(),
                           threads.front(), threads.back(), what);
  }
  FailCheck(__FILE__, __LINE__, "no deadlock",
            fmt::format("in block ({}, {}, {}){}", blockIdx.x, blockIdx.y, blockIdx.z, message));
}

void FillShared(Block& block) {
  std::memset(block.shared, kUnwritten, block.shared_bytes + kMarginBytes);
  if (__start_emulated_shared != nullptr) {
    std::memset(__start_emulated_shared, kUnwritten,
                static_cast<size_t>(__stop_emulated_shared - __start_emulated_shared));
  }
}

void RunBlock(Block& block) {
  FillShared(block);
  for (int i = 0; i < block.num_threads; ++i) {
    Thread& thread = block.threads[i];
    const unsigned index = static_cast<unsigned>(i);
    thread.index = {index % blockDim.x, index / blockDim.x % blockDim.y,
                    index / (blockDim.x * blockDim.y)};
    thread.state = State::kReady;
    thread.copies.clear();
    thread.groups.clear();
  }
  block.num_alive = block.num_threads;
  block.num_at_barrier = 0;
  while (block.num_alive > 0) {
    const bool is_upward = block.NextIsUpward();
    bool has_run = false;
    for (int i = 0; i < block.num_threads; ++i) {
      block.running = is_upward ? i : block.num_threads - 1 - i;
      Thread& thread = block.current();
      if (thread.state != State::kReady) continue;
      has_run = true;
      threadIdx = thread.index;
      Switch(block.scheduler, thread.context);
      const int first_thread = block.running / 32 * 32;
      if (thread.state == State::kEnded) {
        // Others may have waited for this one alone.
        TryBarrier(block);
        for (int j = first_thread; j < std::min(first_thread + 32, block.num_threads); ++j) {
          const Thread& other = block.threads[j];
          if (other.state == State::kInWarp) TryWarp(block, first_thread, other.mask);
        }
      } else if (thread.state == State::kAtBarrier) {
        TryBarrier(block);
      } else if (thread.state == State::kInWarp) {
        TryWarp(block, first_thread, thread.mask);
      }
    }
    if (!has_run) FailDeadlock(block);
  }
  for (size_t i = 0; i < kMarginBytes; ++i) {
    CHECK(block.shared[block.shared_bytes + i] == std::byte{kUnwritten},
          "a block wrote to {} bytes behind its {} bytes of dynamic shared memory", i,
          block.shared_bytes);
  }
}

void Allocate(Block& block) {
  if (block.shared != nullptr) return;
  block.shared = static_cast<std::byte*>(std::aligned_alloc(1024, kMostSharedBytes + kMarginBytes));
  block.threads.resize(kMostThreads);
  constexpr size_t kStride = kGuardBytes + kStackBytes;
  void* stacks = mmap(nullptr, kMostThreads * kStride, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(stacks != MAP_FAILED);
  for (int i = 0; i < kMostThreads; ++i) {
    std::byte* guard = static_cast<std::byte*>(stacks) + i * kStride;
    CHECK(mprotect(guard, kGuardBytes, PROT_NONE) == 0);
    Prepare(block.threads[i].context, guard + kGuardBytes, Entry);
  }
}

}  // namespace

void Together(const char* name, uint32_t mask, bool needs_all_lanes, void* mine,
              WarpFunction function) {
  Block& block = TheBlock();
  Thread& thread = block.current();
  CHECK((mask >> (block.running % 32) & 1) != 0, "{} by lane {}, which is not in mask {:#x}", name,
        block.running % 32, mask);
  thread.state = State::kInWarp;
  thread.waits_for = name;
  thread.mask = mask;
  thread.needs_all_lanes = needs_all_lanes;
  thread.mine = mine;
  thread.function = function;
  Yield();
}

int BlockSum(const char* name, int value) {
  Block& block = TheBlock();
  Thread& thread = block.current();
  thread.state = State::kAtBarrier;
  thread.waits_for = name;
  thread.sum = value;
  ++block.num_at_barrier;
  Yield();
  return thread.sum;
}

void ShuffleLanes(void* const lanes[32]) {
  std::array<uint64_t, 32> results = {};
  for (int i = 0; i < 32; ++i) {
    if (lanes[i] == nullptr) continue;
    const ShuffleLane& lane = *static_cast<ShuffleLane*>(lanes[i]);
    const int first = i & ~(lane.width - 1);
    int from = i;
    switch (lane.kind) {
      case Shuffle::kIndex:
        from = first + (lane.by & (lane.width - 1));
        break;
      case Shuffle::kUp:
        from = i - lane.by >= first ? i - lane.by : i;
        break;
      case Shuffle::kDown:
        from = i + lane.by < first + lane.width ? i + lane.by : i;
        break;
      case Shuffle::kXor:
        from = (i ^ lane.by) < first + lane.width ? i ^ lane.by : i;
        break;
    }
    CHECK(from >= 0 && lanes[from] != nullptr, "lane {} reads lane {}, which takes no part", i,
          from);
    results[i] = static_cast<ShuffleLane*>(lanes[from])->value;
  }
  for (int i = 0; i < 32; ++i) {
    if (lanes[i] != nullptr) static_cast<ShuffleLane*>(lanes[i])->value = results[i];
  }
}

std::byte* DynamicSharedMemory() { return TheBlock().shared; }

void CheckShared(const char* name, const void* data, int bytes) {
  const Block& block = TheBlock();
  const std::byte* begin = static_cast<const std::byte*>(data);
  CHECK(reinterpret_cast<uintptr_t>(data) % bytes == 0, "{} of a misaligned address", name);
  const bool is_dynamic =
      begin >= block.shared && begin + bytes <= block.shared + block.shared_bytes;
  const bool is_static =
      begin >= __start_emulated_shared && begin + bytes <= __stop_emulated_shared;
  CHECK(is_dynamic || is_static, "{} of memory that is not shared", name);
}

void CopyLater(void* shared, const void* global, bool valid) {
  CheckShared("CopyAsync16", shared, 16);
  CHECK(reinterpret_cast<uintptr_t>(global) % 16 == 0, "CopyAsync16 from a misaligned address");
  // Until the wait, whatever was there is as good as gone.
  std::memset(shared, kUnwritten, 16);
  TheBlock().current().copies.push_back({shared, global, valid});
}

void CommitCopies() {
  Thread& thread = TheBlock().current();
  thread.groups.push_back(std::move(thread.copies));
  thread.copies.clear();
}

void FinishCopies(int groups_left) {
  Thread& thread = TheBlock().current();
  while (thread.groups.size() > static_cast<size_t>(groups_left)) {
    for (const Copy& copy : thread.groups.front()) {
      if (copy.valid) {
        std::memcpy(copy.shared, copy.global, 16);
      } else {
        std::memset(copy.shared, 0, 16);
      }
    }
    thread.groups.pop_front();
  }
}

void RunGrid(dim3 grid, dim3 block_size, size_t shared_bytes, const std::function<void()>& thread) {
  CHECK(grid.x > 0 && grid.y > 0 && grid.z > 0, "an empty grid: {} x {} x {}", grid.x, grid.y,
        grid.z);
  CHECK(grid.x < 1u << 31 && grid.y < 1u << 16 && grid.z < 1u << 16, "a grid of {} x {} x {}",
        grid.x, grid.y, grid.z);
  const uint64_t num_threads = uint64_t{block_size.x} * block_size.y * block_size.z;
  CHECK(num_threads > 0 && num_threads <= kMostThreads && block_size.z <= 64,
        "a block of {} x {} x {} threads", block_size.x, block_size.y, block_size.z);
  CHECK(shared_bytes <= kMostSharedBytes, "{} bytes of shared memory", shared_bytes);
  Block& block = TheBlock();
  const std::lock_guard lock(block.one_launch);
  Allocate(block);
  block.shared_bytes = shared_bytes;
  block.num_threads = static_cast<int>(num_threads);
  block.body = &thread;
  gridDim = grid;
  blockDim = block_size;
  const uint64_t num_blocks = uint64_t{grid.x} * grid.y * grid.z;
  const bool is_upward = block.NextIsUpward();
  for (uint64_t i = 0; i < num_blocks; ++i) {
    const uint64_t index = is_upward ? i : num_blocks - 1 - i;
    blockIdx = {static_cast<unsigned>(index % grid.x),
                static_cast<unsigned>(index / grid.x % grid.y),
                static_cast<unsigned>(index / grid.x / grid.y)};
    RunBlock(block);
  }
}

}  // namespace convene::kernels::cuda::emulated
