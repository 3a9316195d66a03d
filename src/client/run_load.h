// A load of many clients at the same time against a running server, as `convene bench --server`
// makes it. One client is load_client.h.
#pragma once

#include <string>

#include "base/result.h"
#include "client/load_client.h"
#include "client/load_figures.h"
#include "client/server_url.h"

namespace convene::client {

// The name of the first model that the server lists (GET /v1/models). Errors: nobody answers, the
// server refuses, it has no model yet, what it answers is no list of models.
Result<std::string> AskModelName(const ServerUrl& url, const std::string& api_key);

// Begins all clients at the same time and returns when the last request has ended; on the calling
// thread. Requests that fail are in the record. Error: the host's name is not known.
Result<LoadRecord> RunLoad(const LoadOptions& options);

}  // namespace convene::client
