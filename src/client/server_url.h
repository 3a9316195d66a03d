// Where a server is that speaks OpenAI's API, as people write it. Nothing is connected to here.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace convene::client {

struct ServerUrl {
  std::string host;  // a name or an address; of IPv6 without brackets
  std::string port;
  std::string base;  // what comes before "/v1/...": empty, or begins with a slash

  // As the header Host has it.
  std::string authority() const;
};

// "http://127.0.0.1:8080", with a path before and a "/v1" behind if there are any; the port is 80
// where none is said. Errors: another scheme (TLS is not spoken), no host, a port that is none,
// characters that no URL has.
Result<ServerUrl> ParseServerUrl(std::string_view text);

}  // namespace convene::client
