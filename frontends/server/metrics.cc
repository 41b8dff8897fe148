#include "frontends/server/metrics.h"

#include <unistd.h>

#include <charconv>
#include <fstream>

#include "kdelta/api/engine.h"

namespace kdelta::server {
namespace {

std::string number(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string escaped(const std::string& label) {
  std::string out;
  for (const char c : label) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

// vLLM's names have a colon, which Prometheus keeps for rules; whoever wants them so names the prefix without its end.
std::string whole_prefix(std::string prefix) {
  if (!prefix.empty() && prefix.back() != '_' && prefix.back() != ':') prefix += ':';
  return prefix;
}

class Page {
 public:
  Page(std::string prefix, const std::string& model)
      : prefix_(whole_prefix(std::move(prefix))), model_("model_name=\"" + escaped(model) + "\"") {}

  void gauge(const char* name, const char* help, double value) { one(name, help, "gauge", "", value); }
  void counter(const char* name, const char* help, int64_t value) {
    one(name, help, "counter", "", static_cast<double>(value));
  }
  // A name with several label values.
  void head(const char* name, const char* help, const char* type) {
    out_ += "# HELP " + prefix_ + name + " " + help + "\n# TYPE " + prefix_ + name + " " + type + "\n";
  }
  void value(const std::string& name, const std::string& label, double value) {
    out_ += prefix_ + name + "{" + model_ + (label.empty() ? "" : "," + label) + "} " + number(value) + "\n";
  }
  void histogram(const char* name, const char* help, const Histogram& h) {
    head(name, help, "histogram");
    int64_t below = 0;
    for (size_t i = 0; i < h.buckets.size(); ++i) {
      below += h.buckets[i];
      const std::string bound = i < h.bounds.size() ? number(h.bounds[i]) : "+Inf";
      value(std::string(name) + "_bucket", "le=\"" + bound + "\"", static_cast<double>(below));
    }
    value(std::string(name) + "_sum", "", h.sum);
    value(std::string(name) + "_count", "", static_cast<double>(h.count));
  }
  // Of the process, by Prometheus' own names.
  void process(const char* name, const char* help, const char* type, double v) {
    out_ += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n" + name + " " +
            number(v) + "\n";
  }
  std::string take() { return std::move(out_); }

 private:
  void one(const char* name, const char* help, const char* type, const char* label, double v) {
    head(name, help, type);
    value(name, label, v);
  }

  const std::string prefix_, model_;
  std::string out_;
};

void write_process(Page& page) {
  std::ifstream statm("/proc/self/statm"), stat("/proc/self/stat");
  double virtual_pages = 0, resident_pages = 0;
  statm >> virtual_pages >> resident_pages;
  const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE)), ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  // Behind the name, which may hold anything: state and ten more, then user and system time.
  std::string line, field;
  std::getline(stat, line);
  double user = 0, system = 0;
  if (const size_t end = line.rfind(')'); end != std::string::npos) {
    size_t at = end;
    for (int i = 0; i < 12 && at != std::string::npos; ++i) at = line.find(' ', at + 1);
    if (at != std::string::npos) {
      const char* text = line.data() + at + 1;
      const char* last = line.data() + line.size();
      text = std::from_chars(text, last, user).ptr;
      if (text < last) std::from_chars(text + 1, last, system);
    }
  }
  page.process("process_resident_memory_bytes", "Resident memory.", "gauge", resident_pages * page_bytes);
  page.process("process_virtual_memory_bytes", "Virtual memory.", "gauge", virtual_pages * page_bytes);
  page.process("process_cpu_seconds_total", "User and system time.", "counter", (user + system) / ticks);
}

}  // namespace

std::string metrics_text(const ServiceStats& s, const std::string& prefix, const std::string& model) {
  Page page(prefix, model);
  page.gauge("num_requests_running", "Requests that run.", static_cast<double>(s.running));
  page.gauge("num_requests_waiting", "Requests that wait for a place.", static_cast<double>(s.waiting));
  page.gauge("kv_cache_usage_perc", "Part of the pages for context in use, 0 to 1.", s.page_usage);
  page.gauge("state_slots_usage_perc", "Part of the slots for recurrent states in use, 0 to 1.",
             static_cast<double>(s.running) / static_cast<double>(std::max<int64_t>(s.max_sequences, 1)));
  page.head("cache_config_info", "Tokens of a page and number of pages.", "gauge");
  page.value("cache_config_info",
             "block_size=\"" + std::to_string(s.page_tokens) + "\",num_gpu_blocks=\"" + std::to_string(s.pages) + "\"",
             1);
  page.counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", s.prefix_queries);
  page.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", s.prefix_hits);
  page.counter("prompt_tokens_total", "Tokens of prompts.", s.prompt_tokens);
  page.counter("generation_tokens_total", "Generated tokens.", s.tokens);
  page.counter("num_preemptions_total", "Requests that made room for older ones.", s.work.preempted);
  page.counter("spec_decode_num_draft_tokens_total", "Tokens guessed ahead.", s.work.drafts);
  page.counter("spec_decode_num_accepted_tokens_total", "Guessed tokens that were right.", s.work.accepted_drafts);
  page.head("request_success_total", "Requests by how they ended.", "counter");
  for (const auto& [reason, count] :
       {std::pair{"stop", s.stopped}, {"length", s.cut}, {"abort", s.cancelled}, {"error", s.failed}})
    page.value("request_success_total", std::string("finished_reason=\"") + reason + "\"", static_cast<double>(count));
  page.gauge("engine_step_seconds", "Time that the step of this moment has taken so far, 0 between steps.",
             s.step_seconds);
  page.counter("engine_slow_steps_total", "Steps that took longer than the limit.", s.slow_steps);
  page.histogram("time_to_first_token_seconds", "From arrival to the first token.", s.first_token);
  page.histogram("inter_token_latency_seconds", "Between two tokens of a request.", s.inter_token);
  page.histogram("e2e_request_latency_seconds", "From arrival to the end.", s.whole);
  page.histogram("request_queue_time_seconds", "From arrival to the first step.", s.queued);
  page.histogram("request_prefill_time_seconds", "From the first step to the first token.", s.prefill);
  page.histogram("request_decode_time_seconds", "From the first token to the last.", s.decode);
  page.histogram("iteration_tokens_total", "Tokens of a step.", s.step_tokens);
  page.histogram("request_prompt_tokens", "Tokens of a prompt.", s.prompt_length);
  page.histogram("request_generation_tokens", "Tokens of an answer.", s.answer_length);
  page.histogram("request_params_max_tokens", "Most tokens that a request asked for.", s.max_tokens);
  page.head("build_info", "The program.", "gauge");
  page.value("build_info", "version=\"" + escaped(version()) + "\"", 1);
  write_process(page);
  return page.take();
}

}  // namespace kdelta::server
