// What the server says of itself at /openapi.json. The router reads the same endpoints, and takes no field of a body
// that is not described here: the description cannot fall behind what it describes.
#pragma once

#include <span>

#include "kdelta/api/json.h"

namespace kdelta::server {

struct Endpoint {
  const char* method;
  const char* path;  // "{id}" in it stands for a part without a slash, at its end for all that is left
  const char* summary;
  const char* body;   // schema of the request's body among those of request_schemas(); "": it takes none
  const char* reply;  // schema of the reply with status 200 among those of reply_schemas(); "": it is no JSON
  const char* type = "application/json";  // of that reply
  bool open = false;                      // needs no key
  bool streams = false;                   // with "stream": true the reply is text/event-stream
  const char* error = "Error";            // schema of its errors
};

// An object of JSON Schemas by name. Each property of a request has an example; one that is not required may be null.
const Json& request_schemas();
const Json& reply_schemas();

// Members of these for the Anthropic API and for the OpenAI Responses API.
extern const char* const kMessageRequests;
extern const char* const kMessageReplies;
extern const char* const kResponseRequests;
extern const char* const kResponseReplies;

// The document, in OpenAPI 3.1.
Json openapi(std::span<const Endpoint> endpoints, const std::string& version);

// Throws Error(invalid_argument) naming the first field of `body` that the request schema of that name has not.
void refuse_undescribed(const Json& body, const std::string& schema);

// Whether `path` is one of `pattern`; `id` is then what stands for "{id}".
bool matches(std::string_view pattern, std::string_view path, std::string* id = nullptr);

}  // namespace kdelta::server
