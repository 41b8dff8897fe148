// The page for Prometheus, read as strictly as its text format is written down.
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "tests/server/server.h"

namespace kdelta {
namespace {

using test::Server;

bool is_name(std::string_view text, bool of_label) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || (c == ':' && !of_label);
  });
}

struct Sample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

// A page of metrics. What breaks a rule of the format, or of `promtool check metrics`, is in `faults`.
class Page {
 public:
  explicit Page(const std::string& text) {
    if (!text.ends_with('\n')) fault("the last line has no end");
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      line(text.substr(begin, end - begin));
      begin = end + 1;
    }
    end_family();
  }

  const std::vector<std::string>& faults() const { return faults_; }
  const std::vector<Sample>& samples() const { return all_; }

 private:
  void fault(const std::string& what) { faults_.push_back(what); }

  void line(const std::string& text) {
    if (text.starts_with("# HELP ")) return help(text.substr(7));
    if (text.starts_with("# TYPE ")) return type(text.substr(7));
    if (text.empty() || text[0] == '#') return fault("neither help, type nor sample: " + text);
    sample(text);
  }

  void help(const std::string& rest) {
    end_family();
    const size_t space = std::min(rest.find(' '), rest.size());
    family_ = rest.substr(0, space);
    if (!is_name(family_, false)) fault("no name: " + rest);
    if (rest.size() < space + 3) fault(family_ + ": no help");
    if (!seen_.insert(family_).second) fault(family_ + ": twice");
  }

  void type(const std::string& rest) {
    const size_t space = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, space) != family_ || family_.empty()) fault(rest + ": a type without its help before it");
    type_ = rest.substr(std::min(space + 1, rest.size()));
    if (!std::set<std::string>{"counter", "gauge", "histogram"}.contains(type_)) fault(family_ + ": type " + type_);
  }

  void sample(const std::string& text) {
    Sample s;
    size_t at = std::min(text.find_first_of("{ "), text.size());
    s.name = text.substr(0, at);
    if (!is_name(s.name, false)) fault("no name: " + text);
    if (at < text.size() && text[at] == '{') at = labels(text, at + 1, s);
    const std::string value = text.substr(std::min(at + 1, text.size()));
    char* end = nullptr;
    s.value = std::strtod(value.c_str(), &end);
    if (at >= text.size() || text[at] != ' ' || value.empty() || *end != '\0') fault("no value: " + text);
    const bool of_family =
        s.name == family_ || (type_ == "histogram" && (s.name == family_ + "_bucket" || s.name == family_ + "_sum" ||
                                                       s.name == family_ + "_count"));
    if (!of_family) fault(s.name + ": not below its own help and type");
    for (const Sample& other : now_)
      if (other.name == s.name && other.labels == s.labels) fault("twice: " + text);
    now_.push_back(std::move(s));
  }

  size_t labels(const std::string& text, size_t at, Sample& s) {
    while (at < text.size() && text[at] != '}') {
      const size_t equals = std::min(text.find('=', at), text.size() - 1);
      const std::string name = text.substr(at, equals - at);
      if (!is_name(name, true)) fault("no label: " + text);
      std::string value;
      at = equals + 1;
      if (at >= text.size() || text[at] != '"') fault("no quote: " + text);
      for (++at; at < text.size() && text[at] != '"'; ++at) {
        if (text[at] == '\\') {
          ++at;
          if (at >= text.size() || std::string_view("\\\"n").find(text[at]) == std::string_view::npos)
            fault("no escape: " + text);
        }
        value += at < text.size() ? text[at] : '\0';
      }
      if (!s.labels.emplace(name, value).second) fault("a label twice: " + text);
      ++at;
      if (at < text.size() && text[at] == ',') ++at;
    }
    return at + 1;
  }

  void end_family() {
    if (family_.empty()) return;
    if (type_.empty()) fault(family_ + ": no type");
    if (now_.empty()) fault(family_ + ": no sample");
    // What promtool says of names.
    if (type_ == "counter" && !family_.ends_with("_total")) fault(family_ + ": a counter that is no _total");
    // One name is vLLM's own, and what dashboards ask for.
    if (type_ != "counter" && family_.ends_with("_total") && !family_.ends_with("iteration_tokens_total"))
      fault(family_ + ": a _total that is no counter");
    if (family_.find(':') != std::string::npos) fault(family_ + ": a colon, which is for rules");
    for (const char* end : {"_bucket", "_sum", "_count"})
      if (family_.ends_with(end)) fault(family_ + ": the name of a part of a histogram");
    for (const Sample& s : now_) {
      if (type_ == "counter" && !(s.value >= 0)) fault(s.name + ": a counter below 0");
      if (type_ != "histogram" && s.labels.contains("le")) fault(s.name + ": le, which is for histograms");
    }
    if (type_ == "histogram") check_histogram();
    all_.insert(all_.end(), now_.begin(), now_.end());
    now_.clear();
    type_.clear();
    family_.clear();
  }

  void check_histogram() {
    double bound = -INFINITY, below = 0, infinite = -1, count = -1;
    bool sum = false;
    for (const Sample& s : now_) {
      if (s.name == family_ + "_sum") sum = true;
      if (s.name == family_ + "_count") count = s.value;
      if (s.name != family_ + "_bucket") continue;
      const auto le = s.labels.find("le");
      if (le == s.labels.end()) {
        fault(family_ + ": a bucket without its bound");
        continue;
      }
      const double upper = std::strtod(le->second.c_str(), nullptr);
      if (!(upper > bound)) fault(family_ + ": bounds do not grow");
      if (s.value < below) fault(family_ + ": counts of buckets fall");
      bound = upper;
      below = s.value;
      if (std::isinf(upper)) infinite = s.value;
    }
    if (!sum || count < 0 || infinite != count) fault(family_ + ": sum, count and the last bucket do not agree");
  }

  std::vector<std::string> faults_;
  std::set<std::string> seen_;
  std::string family_, type_;
  std::vector<Sample> now_, all_;
};

TEST(Metrics, ThePageKeepsEveryRuleOfItsFormat) {
  Server server({.names = {"a \"quoted\\ name\nin two lines"}});
  server.post("/v1/completions", R"({"prompt":"In the","max_tokens":3,"n":2})");
  const Page page(server.get("/metrics").body);
  EXPECT_THAT(page.faults(), testing::IsEmpty());
  EXPECT_GT(page.samples().size(), 200u);
  const auto value = [&](const std::string& name) {
    for (const Sample& s : page.samples())
      if (s.name == name) return s.value;
    return -1.0;
  };
  EXPECT_EQ(value("kdelta_generation_tokens_total"), 6);
  EXPECT_EQ(value("kdelta_time_to_first_token_seconds_count"), 2);
  EXPECT_GT(value("process_resident_memory_bytes"), 1e6);
  EXPECT_EQ(value("kdelta_engine_slow_steps_total"), 0);
  Server other({.metrics_prefix = "vllm"});
  EXPECT_THAT(other.get("/metrics").body, testing::HasSubstr("\nvllm:num_requests_running{model_name=\"tiny\"} 0\n"));
}

// The reader is strict: each of these is refused.
TEST(Metrics, APageThatBreaksARuleIsNoticed) {
  const std::string head = "# HELP a_total A thing.\n# TYPE a_total counter\n";
  EXPECT_THAT(Page(head + "a_total{x=\"1\"} 2\n").faults(), testing::IsEmpty());
  for (const std::string& bad :
       {head, head + "a_total 1", head + "a_total x\n", head + "a_total -1\n", head + "b_total 1\n",
        head + "a_total 1 2\n", head + "a_total 1\na_total 2\n", head + "a_total{x=1} 1\n",
        head + "a_total{x=\"\\q\"} 1\n", head + "a_total{1x=\"1\"} 1\n", head + "a_total 1\n" + head + "a_total 1\n",
        std::string("a_total 1\n"), std::string("# HELP a A thing.\n# TYPE a counter\na 1\n"),
        std::string("# HELP a A thing.\na 1\n"),
        std::string(
            "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n"),
        std::string("# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n")})
    EXPECT_THAT(Page(bad).faults(), testing::Not(testing::IsEmpty())) << bad;
}

}  // namespace
}  // namespace kdelta
