#include "cli/enough_stack.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <ucontext.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/message.h"

namespace convene::cli {
namespace {

constexpr size_t kStackBytes = size_t{8} << 20;
constexpr size_t kGuardBytes = size_t{64} << 10;  // below the stack, where nothing may be written

// makecontext passes no pointers.
const std::function<int()>* run_inside = nullptr;
int result = EXIT_FAILURE;

void Enter() { result = (*run_inside)(); }

void RaiseStackOfThreads() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  if (pthread_attr_getstacksize(&attributes, &bytes) == 0 && bytes < kStackBytes &&
      pthread_attr_setstacksize(&attributes, kStackBytes) == 0) {
    // Where it is refused threads are started with what they had.
    static_cast<void>(pthread_setattr_default_np(&attributes));
  }
  pthread_attr_destroy(&attributes);
}

}  // namespace

int RunWithEnoughStack(const std::function<int()>& run) {
  RaiseStackOfThreads();
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kStackBytes) return run();
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
    PrintError(fmt::format("cannot get a stack of 8 MiB: {}; raise the limits (ulimit -s, -v)",
                           std::strerror(errno)));
    return EXIT_FAILURE;
  }
  static ucontext_t outside;
  static ucontext_t inside;
  if (getcontext(&inside) != 0) return run();
  inside.uc_stack.ss_sp = static_cast<char*>(memory) + kGuardBytes;
  inside.uc_stack.ss_size = kStackBytes;
  inside.uc_link = &outside;
  run_inside = &run;
  makecontext(&inside, Enter, 0);
  swapcontext(&outside, &inside);
  munmap(memory, kGuardBytes + kStackBytes);
  return result;
}

}  // namespace convene::cli
