// The line of the log that tells how a request has ended. Who writes it and when is not its matter.
#pragma once

#include <string>

#include "server/exchange.h"
#include "server/http.h"
#include "server/request_log.h"

namespace convene::server {

// Of one for text. `prompt_text`: as JSON; "" where it is not to be told.
LogFields EndedRequest(const RequestHead& head, const Exchange& exchange,
                       const std::string& prompt_text);

// Of one whose client went, `total_s` seconds after it came, before it was known what it says.
LogFields GoneRequest(const RequestHead& head, double total_s);

}  // namespace convene::server
