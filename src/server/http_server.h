// Listens at an address and serves what connects to it, on one thread. What requests mean is the
// handler's matter (http.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "server/caught_signals.h"
#include "server/http.h"

namespace convene::server {

class HttpServer {
 public:
  // Keeps a reference to `handler`. `host` is a name or an address; port 0: any free one. Errors:
  // the address is not there, or in use.
  static Result<std::unique_ptr<HttpServer>> Listen(const std::string& host, int port,
                                                    const HttpLimits& limits, Handler& handler);
  ~HttpServer();

  int port() const;
  std::string url() const;

  // Serves until Stop, or after Drain until the last connection is closed; on the thread that calls
  // it all handlers run.
  void Run();

  // These may be called on any thread. `work` runs on the server's thread; after Run's end never.
  void Post(std::function<void()> work);
  void Stop();

  // The rest on the server's thread. Calls `work` on it after a while; never after Run's end.
  void After(std::chrono::steady_clock::duration delay, std::function<void()> work);

  // `handle` gets SIGTERM and SIGINT as they come, from now on. Error: as CaughtSignals::Catch.
  Status CatchSignals(std::function<void(const CaughtSignal&)> handle);

  // No more connections and requests: those that were handed to the handler get its responses, a
  // client whose request is not whole is told. Run returns when all have taken what is theirs.
  void Drain();

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// Raises the process's limit of open files to the most that the system allows; returns it.
int64_t RaiseOpenFiles();

}  // namespace convene::server
