// The server as a program: listens at once, loads, serves until it is told to stop, and then lets what runs come to its
// end.
#pragma once

#include "frontends/server/api.h"

namespace kdelta::server {

struct ServeOptions {
  HttpOptions http;
  ApiOptions api;
  ServiceOptions service;
  std::chrono::milliseconds shutdown_timeout{30'000};  // for requests that run when it is told to stop
};

// SIGINT or SIGTERM: not ready, no new requests, those that run finish, at most shutdown_timeout long; a second one
// ends the process at once, and so does the first while the model is loaded. Call it before other threads are started:
// they inherit that these signals are blocked. `load` may take long and runs on the calling thread; `say` gets lines
// for people.
int serve(const ServeOptions& options, const std::function<Engine()>& load,
          const std::function<void(const std::string&)>& say);

}  // namespace kdelta::server
