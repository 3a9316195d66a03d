// A client of `convene serve` for its tests: starts the binary, speaks HTTP over plain sockets. It
// understands what that server sends and no more.
#pragma once

#include <sys/types.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace convene {

struct HttpAnswer {
  int status = 0;  // 0: the connection was closed before a response
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string body = {};
  bool is_whole = false;

  nlohmann::json Json() const { return nlohmann::json::parse(body, nullptr, false); }
  // The data of the server-sent events of the body.
  std::vector<std::string> Events() const;
};

// One connection. Reads give up after 60 s, so that no test hangs.
class Connection {
 public:
  explicit Connection(int port);
  ~Connection();
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&&) = delete;

  // False: the server has closed the connection.
  bool Send(std::string_view bytes);
  // Until `text` has come, or the end; all that has come since the last answer.
  std::string ReadUntil(std::string_view text);
  HttpAnswer ReadAnswer();
  void CloseSending();

 private:
  bool ReadMore();

  int socket_;
  std::string buffer_;
};

std::string PostText(std::string_view path, std::string_view body, std::string_view headers = "");

inline constexpr const char* kDemoModel = CONVENE_SOURCE_DIR "/models/demo";

class ServeProcess {
 public:
  // `convene serve MODEL --port 0` with further arguments; waits until it is ready.
  explicit ServeProcess(const std::vector<std::string>& arguments,
                        const std::string& model = kDemoModel);
  ~ServeProcess();  // ends it
  ServeProcess(const ServeProcess&) = delete;
  ServeProcess& operator=(const ServeProcess&) = delete;

  int port() const { return port_; }
  pid_t pid() const { return pid_; }
  void Signal(int number) const;
  // Its exit status, or 128 + the signal that ended it.
  int Wait();
  std::string log() const;

  HttpAnswer Get(std::string_view path, std::string_view headers = "") const;
  HttpAnswer Post(std::string_view path, std::string_view body,
                  std::string_view headers = "") const;
  // The value of a metric without labels but the model's.
  double Metric(const std::string& name) const;

 private:
  pid_t pid_ = -1;
  int port_ = 0;
  std::string log_path_;
};

}  // namespace convene
