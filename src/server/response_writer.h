// Responses as this server gives them: with what a browser wants to see, counted by the metrics,
// and told to the log. Those of text come in pieces (exchange.h); what they say is not here.
#pragma once

#include "openai/api_error.h"
#include "server/access.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/request_log.h"

namespace convene::server {

class ResponseWriter {
 public:
  // Keeps references.
  ResponseWriter(const Access& access, Metrics& metrics, const RequestLog& log)
      : access_(access), metrics_(metrics), log_(log) {}

  // To be responded as it is.
  Response Refuse(const RequestHead& head, const openai::ApiError& error) const;
  void Respond(const RequestHead& head, Responder& responder, Response response) const;

 private:
  const Access& access_;
  Metrics& metrics_;
  const RequestLog& log_;
};

}  // namespace convene::server
