#include <mutex>
#include <random>

#include "frontends/server/http.h"
#include "kdelta/api/json.h"

namespace kdelta::server {

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

Reply error_reply(int status, std::string_view message, std::string_view type, std::string_view param,
                  std::string_view code) {
  Json error = Json::Object{};
  error.set("message", is_utf8(message) ? std::string(message) : printable(message));
  error.set("type", type.empty() ? error_type(status) : type);
  error.set("param", param.empty() ? Json() : Json(param));
  error.set("code", code.empty() ? Json() : Json(code));
  Json body = Json::Object{};
  body.set("error", std::move(error));
  Reply reply{.status = status, .body = json_text(body)};
  if (status == 429 || status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

std::string new_id(const std::string& prefix) {
  static std::mutex mutex;
  static std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::string id = prefix;
  const std::lock_guard lock(mutex);
  for (int i = 0; i < 24; ++i) id += "0123456789abcdef"[random() % 16];
  return id;
}

}  // namespace kdelta::server
