// Models: kdelta::Service for Python. Whatever computes or waits runs without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "kdelta/api/service.h"

namespace nb = nanobind;

namespace kdelta::python {

void bind_operators(nb::module_& m);

namespace {

// Becomes readable when an answer has something new: asyncio waits for that, so the engine's thread never needs the
// GIL.
class Wakeup {
 public:
  Wakeup() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw std::runtime_error("eventfd: no file descriptor left");
  }
  ~Wakeup() { close(fd_); }
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;
  void ring() const { (void)!write(fd_, &kOne, sizeof(kOne)); }
  void quiet() const {
    uint64_t count = 0;
    (void)!read(fd_, &count, sizeof(count));
  }
  int fd() const { return fd_; }

 private:
  static constexpr uint64_t kOne = 1;
  int fd_;
};

const char* kind_of(AnswerPart::Kind kind) {
  switch (kind) {
    case AnswerPart::Kind::text:
      return "text";
    case AnswerPart::Kind::reasoning:
      return "reasoning";
    case AnswerPart::Kind::content:
      return "content";
    case AnswerPart::Kind::call:
      return "call";
  }
  return "";
}

nb::dict to_dict(const ServiceDelta& d) {
  nb::list parts;
  for (const AnswerPart& p : d.parts) {
    nb::dict part;
    part["kind"] = kind_of(p.kind);
    part["text"] = p.text;
    if (p.kind == AnswerPart::Kind::call) {
      part["index"] = p.call.index;
      part["id"] = p.call.id;
      part["name"] = p.call.name;
      part["arguments"] = p.call.arguments;
      part["failed"] = p.call.failed;
    }
    parts.append(part);
  }
  nb::dict out;
  out["parts"] = parts;
  out["tokens"] = d.tokens;
  nb::list logprobs;
  for (const TokenLogprobs& l : d.logprobs) logprobs.append(nb::make_tuple(l.token, l.logprob, l.top));
  out["logprobs"] = logprobs;
  if (!d.end) return out;
  nb::dict end;
  end["finish_reason"] = d.end->reason;
  end["error"] = d.end->error;
  end["prompt_tokens"] = d.end->prompt_tokens;
  end["cached_tokens"] = d.end->cached_tokens;
  end["tokens"] = d.end->tokens;
  end["seconds"] = nb::make_tuple(d.end->timings.queued, d.end->timings.prefill, d.end->timings.decode);
  out["end"] = end;
  return out;
}

class Answer {
 public:
  Answer(std::unique_ptr<ServiceAnswer> answer, std::shared_ptr<Wakeup> wakeup)
      : answer_(std::move(answer)), wakeup_(std::move(wakeup)) {}
  // What came within that long; None: nothing.
  nb::object wait(int64_t milliseconds) {
    ServiceDelta delta;
    bool some = false;
    {
      const nb::gil_scoped_release released;
      wakeup_->quiet();
      some = answer_->wait(&delta, std::chrono::milliseconds(milliseconds));
    }
    return some ? nb::object(to_dict(delta)) : nb::none();
  }
  void cancel() { answer_->cancel(); }
  int fileno() const { return wakeup_->fd(); }

 private:
  std::unique_ptr<ServiceAnswer> answer_;
  std::shared_ptr<Wakeup> wakeup_;
};

GenerateOptions options_of(GenerateOptions o, const nb::dict& given) {
  for (auto [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (value.is_none()) continue;
    if (name == "temperature")
      o.temperature = nb::cast<float>(value);
    else if (name == "top_p")
      o.top_p = nb::cast<float>(value);
    else if (name == "min_p")
      o.min_p = nb::cast<float>(value);
    else if (name == "top_k")
      o.top_k = nb::cast<int32_t>(value);
    else if (name == "repetition_penalty")
      o.repetition_penalty = nb::cast<float>(value);
    else if (name == "presence_penalty")
      o.presence_penalty = nb::cast<float>(value);
    else if (name == "frequency_penalty")
      o.frequency_penalty = nb::cast<float>(value);
    else if (name == "logit_bias")
      o.logit_bias = nb::cast<std::map<int32_t, float>>(value);
    else if (name == "seed")
      o.seed = nb::cast<uint64_t>(value);
    else if (name == "max_tokens")
      o.max_tokens = nb::cast<int64_t>(value);
    else if (name == "min_tokens")
      o.min_tokens = nb::cast<int64_t>(value);
    else if (name == "stop_ids")
      o.stop_ids = nb::cast<std::vector<int32_t>>(value);
    else if (name == "stop")
      o.stop = nb::cast<std::vector<std::string>>(value);
    else if (name == "ignore_eos")
      o.ignore_eos = nb::cast<bool>(value);
    else if (name == "logprobs")
      o.logprobs = nb::cast<int32_t>(value);
    else if (name == "show_specials")
      o.show_specials = nb::cast<bool>(value);
    else
      throw nb::type_error(("no generation option " + name).c_str());
  }
  return o;
}

LoadOptions load_options(const std::string& model, const nb::dict& given, const nb::object& progress) {
  LoadOptions o;
  o.model = model;
  for (auto [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (value.is_none()) continue;
    if (name == "device")
      o.device = nb::cast<std::string>(value);
    else if (name == "exact")
      o.exact = nb::cast<bool>(value);
    else if (name == "dtype")
      o.dtype = nb::cast<std::string>(value);
    else if (name == "state_dtype")
      o.state_dtype = nb::cast<std::string>(value);
    else if (name == "kda_gate")
      o.kda_gate = nb::cast<std::string>(value);
    else if (name == "threads")
      o.threads = nb::cast<int>(value);
    else if (name == "isa")
      o.isa = nb::cast<std::string>(value);
    else if (name == "force")
      o.force = nb::cast<std::string>(value);
    else if (name == "max_length")
      o.max_length = nb::cast<int64_t>(value);
    else if (name == "token_budget")
      o.token_budget = nb::cast<int64_t>(value);
    else if (name == "max_sequences")
      o.max_sequences = nb::cast<int64_t>(value);
    else if (name == "cache_tokens")
      o.cache_tokens = nb::cast<int64_t>(value);
    else if (name == "drafts")
      o.drafts = nb::cast<int64_t>(value);
    else if (name == "draft_model")
      o.draft_model = nb::cast<std::string>(value);
    else if (name == "prefix_snapshots")
      o.prefix_snapshots = nb::cast<int64_t>(value);
    else
      throw nb::type_error(("no load option " + name).c_str());
  }
  if (progress.is_none()) return o;
  // The engine copies and drops its options without the GIL, so no copy may count references.
  const std::shared_ptr<nb::object> shared(new nb::object(progress), [](nb::object* object) {
    const nb::gil_scoped_acquire held;
    delete object;
  });
  o.progress = [shared](int64_t done, int64_t total) {
    const nb::gil_scoped_acquire held;
    (*shared)(done, total);
  };
  return o;
}

class Model {
 public:
  Model(const std::string& model, nb::dict options, nb::object progress) : owner_(getpid()) {
    const LoadOptions o = load_options(model, options, progress);
    check_options(o);
    const nb::gil_scoped_release released;
    service_ = std::make_unique<Service>(Engine::load(o));
  }
  ~Model() {
    const nb::gil_scoped_release released;
    if (getpid() == owner_)
      service_.reset();
    else
      (void)service_.release();  // a child of fork() has none of its threads: nothing to wait for
  }
  const Engine& engine() const { return service_->engine(); }
  // Ends every request and the engine's thread.
  void close() {
    const nb::gil_scoped_release released;
    if (getpid() == owner_) service_->stop("the model was closed");
  }

  Answer* submit(std::vector<int32_t> prompt, nb::dict options, bool chat, bool thinking) {
    if (getpid() != owner_)
      throw std::runtime_error("the model was loaded by another process; after fork() load it anew");
    ServiceRequest request;
    request.task = {std::move(prompt), options_of(engine().default_generation(), options)};
    request.chat = chat;
    request.thinking = thinking;
    auto wakeup = std::make_shared<Wakeup>();
    Service::Submitted submitted;
    {
      const nb::gil_scoped_release released;
      check_options(request.task.options);
      submitted = service_->submit(std::move(request), [wakeup] { wakeup->ring(); });
    }
    switch (submitted.admission) {
      case Admission::accepted:
        return new Answer(std::move(submitted.answer), std::move(wakeup));
      case Admission::full:
        throw std::runtime_error("too many requests wait");
      case Admission::draining:
      case Admission::dead:
        break;
    }
    throw std::runtime_error("the engine has ended: " + service_->problem());
  }
  std::vector<int32_t> chat_prompt(const std::string& lines, bool thinking, const std::string& effort,
                                   const std::string& tools) const {
    ChatSettings s;
    s.thinking = thinking;
    s.effort = effort;
    s.tools_json = tools;
    check_options(s);
    return engine().chat_prompt(Engine::read_messages(lines, "messages"), s);
  }

 private:
  std::unique_ptr<Service> service_;
  pid_t owner_;
};

}  // namespace
}  // namespace kdelta::python

NB_MODULE(_core, m) {
  using namespace kdelta;
  using namespace kdelta::python;
  nb::set_leak_warnings(false);  // what a program keeps until it ends is no leak
  bind_operators(m);
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const std::runtime_error& e) {
      PyErr_SetString(refuses_value(e) ? PyExc_ValueError : PyExc_RuntimeError, e.what());
    }
  });
  m.def("version", &kdelta::version);
  m.def("machine_isa", &kdelta::machine_isa);
  nb::class_<Answer>(m, "Answer")
      .def("wait", &Answer::wait)
      .def("cancel", &Answer::cancel)
      .def("fileno", &Answer::fileno);
  nb::class_<Model>(m, "Model")
      .def(nb::init<const std::string&, nb::dict, nb::object>(), nb::arg("model"), nb::arg("options"),
           nb::arg("progress").none())
      .def("submit", &Model::submit, nb::rv_policy::take_ownership)
      .def("close", &Model::close)
      .def("chat_prompt", &Model::chat_prompt)
      .def("tokenize",
           [](const Model& s, const std::string& text, bool specials) { return s.engine().tokenize(text, specials); })
      .def("detokenize",
           [](const Model& s, const std::vector<int32_t>& ids, bool show) { return s.engine().detokenize(ids, show); })
      .def_prop_ro("vocab_size", [](const Model& s) { return s.engine().vocab_size(); })
      .def_prop_ro("max_length", [](const Model& s) { return s.engine().max_length(); })
      .def_prop_ro("model_id", [](const Model& s) { return s.engine().model_id(); })
      .def_prop_ro("device", [](const Model& s) { return s.engine().device_summary(); })
      .def_prop_ro("memory", [](const Model& s) { return s.engine().memory().total(); })
      .def_prop_ro("kind", [](const Model& s) { return s.engine().info().kind; });
}
