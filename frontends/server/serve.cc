#include "frontends/server/serve.h"

#include <csignal>
#include <cstdlib>
#include <future>
#include <thread>

namespace kdelta::server {
namespace {

constexpr auto kGoodbyes = std::chrono::seconds(3);  // for the last words of what was cut off

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

// Waits for signals on a thread of its own, so that no handler runs anywhere.
class Signals {
 public:
  Signals() {
    const sigset_t set = stop_signals();
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    std::thread([this] {
      for (bool first = true;; first = false) {
        const sigset_t waited = stop_signals();
        int signal = 0;
        sigwait(&waited, &signal);
        if (!first || !serving_) std::_Exit(128 + signal);
        told_.set_value();
      }
    }).detach();  // ends with the process
  }
  void begin_serving() { serving_ = true; }
  void wait() { told_.get_future().wait(); }

 private:
  std::atomic<bool> serving_{false};
  std::promise<void> told_;
};

}  // namespace

int serve(const ServeOptions& options, const std::function<Engine()>& load,
          const std::function<void(const std::string&)>& say) {
  static Signals signals;
  std::signal(SIGPIPE, SIG_IGN);  // whoever read the log may be gone
  Api api(options.api);
  auto http = std::make_unique<HttpServer>(options.http, api.handler());
  const std::string url = "http://" + options.http.host + ":" + std::to_string(http->port());
  say("listening at " + url + ", loading the model");
  Service service(load(), options.service);
  api.serve(service, service.engine().default_generation());
  signals.begin_serving();
  say("ready: " + url);
  signals.wait();
  say("shutting down: requests that run may finish, a second signal ends them");
  api.drain();
  service.drain();
  http->drain();
  const auto until = Clock::now() + options.shutdown_timeout;
  const auto left = [&] {
    return std::max(std::chrono::milliseconds(0),
                    std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()));
  };
  if (!service.wait_idle(left()) || !http->wait_idle(left())) {
    service.stop("the server was shut down");
    http->wait_idle(kGoodbyes);
  }
  http.reset();  // nobody asks the service any more
  return 0;
}

}  // namespace kdelta::server
