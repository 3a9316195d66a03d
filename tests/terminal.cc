#include "tests/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>

#include "base/check.h"

namespace convene {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(60);

}  // namespace

Terminal::Terminal(std::vector<std::string> words,
                   const std::vector<std::pair<std::string, std::string>>& environment) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  winsize size = {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  CHECK(openpty(&master_, &slave_, nullptr, nullptr, &size) == 0, "no terminal to be had");
  CHECK(fcntl(master_, F_SETFD, FD_CLOEXEC) == 0);
  CHECK(fcntl(master_, F_SETFL, O_NONBLOCK) == 0);
  child_ = fork();
  CHECK(child_ >= 0, "no process to be had");
  if (child_ != 0) return;
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  if (login_tty(slave_) == 0) execv(argv[0], argv.data());
  _exit(127);
}

Terminal::~Terminal() {
  if (status_ < 0) {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  close(slave_);
  close(master_);
}

bool Terminal::Read(int timeout_ms) {
  pollfd output = {.fd = master_, .events = POLLIN, .revents = 0};
  if (poll(&output, 1, timeout_ms) <= 0) return false;
  char buffer[4096];
  const ssize_t num_read = read(master_, buffer, sizeof buffer);
  if (num_read <= 0) return false;
  shown_.append(buffer, static_cast<size_t>(num_read));
  return true;
}

void Terminal::Type(std::string_view keys) {
  const Clock::time_point end = Clock::now() + kPatience;
  while (!keys.empty() && Clock::now() < end) {
    const ssize_t written = write(master_, keys.data(), std::min<size_t>(keys.size(), 512));
    if (written > 0) keys.remove_prefix(static_cast<size_t>(written));
    while (Read(written > 0 ? 0 : 10)) {
    }
  }
  CHECK(keys.empty(), "the program does not read what is typed");
}

bool Terminal::Shows(std::string_view text) {
  const Clock::time_point end = Clock::now() + kPatience;
  for (;;) {
    const size_t at = shown_.find(text, found_);
    if (at != std::string::npos) {
      found_ = at + text.size();
      return true;
    }
    if (Clock::now() >= end) return false;
    Read(100);
  }
}

bool Terminal::Ends() {
  const Clock::time_point end = Clock::now() + kPatience;
  while (Clock::now() < end) {
    Read(10);
    int status = 0;
    if (waitpid(child_, &status, WNOHANG) != child_) continue;
    while (Read(0)) {
    }
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
  }
  return false;
}

void Terminal::Signal(int signal) const { kill(child_, signal); }

termios Terminal::modes() const {
  termios modes = {};
  CHECK(tcgetattr(slave_, &modes) == 0);
  return modes;
}

}  // namespace convene
