#include "tests/serve_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"

namespace convene {
namespace {

constexpr int kReadSeconds = 60;

std::string FileText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

std::vector<std::string> HttpAnswer::Events() const {
  std::vector<std::string> events;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("data: ")) events.push_back(line.substr(6));
  }
  return events;
}

Connection::Connection(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval limit = {.tv_sec = kReadSeconds, .tv_usec = 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  CHECK(connect(socket_, generic, sizeof address) == 0, "cannot connect to port {}", port);
}

Connection::Connection(Connection&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), buffer_(std::move(other.buffer_)) {}

Connection::~Connection() {
  if (socket_ >= 0) close(socket_);
}

bool Connection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool Connection::ReadMore() {
  char bytes[16384];
  const ssize_t count = recv(socket_, bytes, sizeof bytes, 0);
  if (count <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(count));
  return true;
}

std::string Connection::ReadUntil(std::string_view text) {
  while (buffer_.find(text) == std::string::npos && ReadMore()) {
  }
  return buffer_;
}

HttpAnswer Connection::ReadAnswer() {
  HttpAnswer answer;
  size_t end = ReadUntil("\r\n\r\n").find("\r\n\r\n");
  if (end == std::string::npos) return answer;
  std::istringstream head(buffer_.substr(0, end));
  std::string version;
  head >> version >> answer.status;
  std::string line;
  std::getline(head, line);
  while (std::getline(head, line)) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    answer.headers[name] = line.substr(colon + 2, line.find('\r') - colon - 2);
  }
  buffer_.erase(0, end + 4);
  if (answer.status == 100) return ReadAnswer();
  const auto take = [&](size_t size) {
    while (buffer_.size() < size && ReadMore()) {
    }
    const std::string taken = buffer_.substr(0, size);
    answer.is_whole = taken.size() == size;
    buffer_.erase(0, size);
    return taken;
  };
  if (!answer.headers.contains("transfer-encoding")) {
    const std::string length = answer.headers["content-length"];
    answer.body = take(length.empty() ? 0 : std::stoul(length));
    return answer;
  }
  for (;;) {
    end = ReadUntil("\r\n").find("\r\n");
    if (end == std::string::npos) {
      answer.is_whole = false;
      return answer;
    }
    const size_t size = std::stoul(take(end + 2), nullptr, 16);
    answer.body += take(size + 2).substr(0, size);
    if (size == 0 || !answer.is_whole) return answer;
  }
}

void Connection::CloseSending() { shutdown(socket_, SHUT_WR); }

std::string PostText(std::string_view path, std::string_view body, std::string_view headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{}Content-Length: "
      "{}\r\n\r\n{}",
      path, headers, body.size(), body);
}

ServeProcess::ServeProcess(const std::vector<std::string>& arguments, const std::string& model) {
  static int number = 0;
  log_path_ = std::filesystem::temp_directory_path() /
              fmt::format("serve_test_{}_{}.log", getpid(), ++number);
  std::vector<std::string> words = {CONVENE_BINARY, "serve", model, "--port", "0"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  pid_ = fork();
  if (pid_ == 0) {
    const int log = open(log_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(log, STDERR_FILENO);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execv(CONVENE_BINARY, argv.data());
    _exit(127);
  }
  for (int i = 0; i < 6000; ++i) {
    const std::string text = log();
    const size_t at = text.find("url=");
    if (at != std::string::npos && text.find('\n', at) != std::string::npos) {
      port_ = std::stoi(text.substr(text.find_last_of(':', text.find(' ', at)) + 1));
      return;
    }
    int status = 0;
    CHECK(waitpid(pid_, &status, WNOHANG) == 0, "the server ended: {}", text);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(false, "the server is not ready: {}", log());
}

ServeProcess::~ServeProcess() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  std::filesystem::remove(log_path_);
}

void ServeProcess::Signal(int number) const { kill(pid_, number); }

int ServeProcess::Wait() {
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string ServeProcess::log() const { return FileText(log_path_); }

HttpAnswer ServeProcess::Get(std::string_view path, std::string_view headers) const {
  Connection connection(port_);
  connection.Send(fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n{}\r\n", path, headers));
  return connection.ReadAnswer();
}

HttpAnswer ServeProcess::Post(std::string_view path, std::string_view body,
                              std::string_view headers) const {
  Connection connection(port_);
  connection.Send(PostText(path, body, headers));
  return connection.ReadAnswer();
}

double ServeProcess::Metric(const std::string& name) const {
  const std::string text = Get("/metrics").body;
  const size_t at = text.find("\n" + name + "{");
  if (at == std::string::npos) return -1;
  return std::stod(text.substr(text.find("} ", at) + 2));
}

}  // namespace convene
