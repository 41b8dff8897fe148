#include <mutex>
#include <random>

#include "frontends/server/http.h"
#include "kdelta/api/json.h"

namespace kdelta::server {

std::string_view HttpRequest::header(std::string_view lower_name) const {
  for (const auto& [name, value] : headers)
    if (name == lower_name) return value;
  return {};
}

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
  const ErrorText text{.message = is_utf8(message) ? std::string(message) : printable(message),
                       .type = std::string(type.empty() ? error_type(status) : type),
                       .param = std::string(param),
                       .code = std::string(code)};
  Json error = Json::Object{};
  error.set("message", text.message);
  error.set("type", text.type);
  error.set("param", param.empty() ? Json() : Json(param));
  error.set("code", code.empty() ? Json() : Json(code));
  Json body = Json::Object{};
  body.set("error", std::move(error));
  Reply reply{.status = status, .body = json_text(body), .error = text};
  if (status == 429 || status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

std::string anthropic_error(const Reply& reply) {
  const int status = reply.status;
  const std::string_view type = status == 413   ? "request_too_large"
                                : status == 504 ? "timeout_error"
                                : status == 503 ? "overloaded_error"
                                : status >= 500 ? "api_error"
                                                : error_type(status);
  Json error = Json::Object{}, body = Json::Object{};
  error.set("type", type);
  error.set("message", reply.error ? reply.error->message : reply.body);
  body.set("type", "error");
  body.set("error", std::move(error));
  return json_text(body);
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
