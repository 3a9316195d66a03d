// The page at /: chat, and what the server does meanwhile. Its sources are page/, which the build
// puts together to one document (cmake/embed_page.cmake).
#pragma once

#include "server/http.h"

namespace convene::server {

// With a content security policy that lets nothing run or load but the page's own script and style,
// by a nonce that each response has of its own.
Response PageResponse();

}  // namespace convene::server
