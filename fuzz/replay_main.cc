// Drives a fuzz target without libFuzzer: every seed file, then mutations of them that are the same
// in every run. It follows no coverage; that is libFuzzer's part, in the preset fuzz. An input that
// fails is kept as NAME_fuzz-crash.bin in the folder where it runs.
//
// Usage: NAME_fuzz [--iterations=N] SEED_FILE_OR_DIRECTORY...
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "token_mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// The sanitizers' own, where the build has one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kMaxInputBytes = 64 << 10;
constexpr unsigned kMaxSeconds = 60;  // for one input; far beyond that, the target hangs

// What the target is reading now, for those who are called when it ends the process.
const uint8_t* current_input = nullptr;
size_t current_size_bytes = 0;

// Where it goes, and what is said then: a file of each target, since several may run in one folder.
// Written before the handlers are set, which may allocate nothing; arrays outlive destructors.
char crash_path[256];
char crash_message[320];

void NameCrashFile(std::string_view program) {
  const std::string_view name = program.substr(program.rfind('/') + 1);
  *fmt::format_to_n(crash_path, sizeof crash_path - 1, "{:.200}-crash.bin", name).out = '\0';
  *fmt::format_to_n(crash_message, sizeof crash_message - 1, "The input that failed is in {}\n",
                    static_cast<const char*>(crash_path))
       .out = '\0';
}

// Keeps the input that ended the process. Only calls what a signal handler may.
void SaveInput() {
  const int file = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return;
  if (write(file, current_input, current_size_bytes) >= 0) {
    [[maybe_unused]] const ssize_t said =
        write(STDERR_FILENO, crash_message, std::strlen(crash_message));
  }
  close(file);
}

void OnSignal(int signal_number) {
  SaveInput();
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void SaveInputOnDeath() {
  // A stack of its own: an input that recurses without end has used up the other.
  static std::byte signal_stack[64 << 10];
  const stack_t stack = {.ss_sp = signal_stack, .ss_flags = 0, .ss_size = sizeof signal_stack};
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_ONSTACK;
  for (const int number : {SIGABRT, SIGALRM}) sigaction(number, &action, nullptr);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(SaveInput);  // after its report of where the signal came from
  } else {
    for (const int number : {SIGBUS, SIGFPE, SIGILL, SIGSEGV}) sigaction(number, &action, nullptr);
  }
}

void RunTarget(const Bytes& input) {
  // A copy of its exact size, so that the address sanitizer sees a read past the end.
  const Bytes exact(input.begin(), input.end());
  current_input = exact.data();
  current_size_bytes = exact.size();
  alarm(kMaxSeconds);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  alarm(0);
}

Bytes ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// The regular files of the arguments, sorted so that every machine mutates the same ones alike.
std::vector<std::filesystem::path> SeedPaths(const std::vector<std::string>& arguments) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& argument : arguments) {
    if (!std::filesystem::is_directory(argument)) {
      paths.emplace_back(argument);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argument)) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Mutator {
 public:
  explicit Mutator(std::vector<Bytes> seeds) : seeds_(std::move(seeds)) {}

  // A seed with one to eight changes.
  Bytes Next() {
    Bytes input = Seed();
    const size_t num_changes = 1 + Below(8);
    for (size_t i = 0; i < num_changes; ++i) Change(input);
    if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
    return input;
  }

 private:
  // Below 1 counts as 1; the generator's sequence is fixed by the standard, distributions' are not.
  size_t Below(size_t limit) { return limit < 2 ? 0 : generator_() % limit; }
  const Bytes& Seed() { return seeds_[Below(seeds_.size())]; }

  void Change(Bytes& input) {
    static constexpr std::string_view kTokens[] = {"\"",
                                                   "\\",
                                                   "{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   ":",
                                                   "null",
                                                   "true",
                                                   "-1",
                                                   "0",
                                                   "1e400",
                                                   "\\ud800",
                                                   "18446744073709551615",
                                                   "9223372036854775808",
                                                   "\xff",
                                                   "\xc3",
                                                   "\xf0\x9f\x98",
                                                   "{{",
                                                   "{%",
                                                   "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
                                                   "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":"};
    const size_t at = Below(input.size() + 1);
    const auto position = input.begin() + static_cast<ptrdiff_t>(at);
    const size_t length = Below(std::min<size_t>(input.size() - at, 64) + 1);
    switch (Below(10)) {
      case 0:  // flip a bit
        if (at < input.size()) input[at] ^= static_cast<uint8_t>(1u << Below(8));
        break;
      case 1:  // replace a byte
        if (at < input.size()) input[at] = static_cast<uint8_t>(Below(256));
        break;
      case 2:  // take bytes out
        input.erase(position, position + static_cast<ptrdiff_t>(length));
        break;
      case 3: {  // repeat bytes
        const Bytes piece(position, position + static_cast<ptrdiff_t>(length));
        const size_t num_copies = 1 + Below(16);
        for (size_t i = 0; i < num_copies; ++i) {
          input.insert(input.begin() + static_cast<ptrdiff_t>(at), piece.begin(), piece.end());
        }
        break;
      }
      case 4: {  // put in something with a meaning
        const std::string_view token = kTokens[Below(std::size(kTokens))];
        input.insert(position, token.begin(), token.end());
        break;
      }
      case 5:  // cut off the end
        input.resize(at);
        break;
      case 6: {  // continue as another seed
        const Bytes& other = Seed();
        const size_t from = Below(other.size() + 1);
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
        break;
      }
      default: {  // change a token
        std::string text(input.begin(), input.end());
        if (tokens_.Change(&text)) input.assign(text.begin(), text.end());
        break;
      }
    }
  }

  std::vector<Bytes> seeds_;
  std::mt19937_64 generator_{1};
  TokenMutator tokens_{1};
};

}  // namespace

int main(int argc, char** argv) {
  int64_t num_iterations = 10000;
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    static constexpr std::string_view kIterations = "--iterations=";
    if (argument.starts_with(kIterations)) {
      const std::string_view number = argument.substr(kIterations.size());
      std::from_chars(number.data(), number.data() + number.size(), num_iterations);
    } else {
      arguments.emplace_back(argument);
    }
  }
  NameCrashFile(argv[0]);
  SaveInputOnDeath();

  std::vector<Bytes> seeds;
  for (const std::filesystem::path& path : SeedPaths(arguments)) seeds.push_back(ReadFile(path));
  if (seeds.empty()) {
    fmt::print(stderr, "No seeds; usage: {} [--iterations=N] SEED_FILE_OR_DIRECTORY...\n", argv[0]);
    return 1;
  }
  for (const Bytes& seed : seeds) RunTarget(seed);

  const size_t num_seeds = seeds.size();
  Mutator mutator(std::move(seeds));
  for (int64_t i = 0; i < num_iterations; ++i) RunTarget(mutator.Next());
  fmt::print("{} seeds and {} mutations read without a failure.\n", num_seeds, num_iterations);
  return 0;
}
