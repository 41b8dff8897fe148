// Many requests to a server at once, on one thread that does little beside: what `bench serve` and the tests of load
// send. Any server of the OpenAI API will do. Without Boost, so that it measures what it did not write.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kdelta::server {

struct LoadRequest {
  std::string path, body;
  std::string method = "POST";
};

struct LoadPlan {
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string headers;                         // lines that every request has beside its own, each ended by \r\n
  int64_t requests = 1;                        // in all
  int64_t concurrency = 1;                     // most at once
  double rate = 0;                             // that begin in a second, at random times; 0: whenever there is room
  uint64_t seed = 1;                           // of these times
  std::chrono::milliseconds patience{60'000};  // one of which nothing came for so long has failed
  std::function<LoadRequest(int64_t number)> request;
};

// What came of one request; times are seconds since the run began.
struct LoadAnswer {
  int status = 0;            // 0: no answer
  std::string error;         // empty: it came whole
  std::string text, finish;  // of its choices, reasoning and content in the order they came
  std::string body;          // of an answer that is no stream
  double began = 0, ended = 0;
  std::vector<double> pieces;             // when each piece of text came
  int64_t prompt_tokens = 0, tokens = 0;  // as the server counts
  double server_first = -1;               // seconds to the first token by the server's own clock; -1: it does not say

  double first() const { return pieces.front() - began; }
};

// Throws std::runtime_error when the host has no address; whatever happens to a request is in its answer.
std::vector<LoadAnswer> run_load(const LoadPlan& plan);

}  // namespace kdelta::server
