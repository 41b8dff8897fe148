// Models: kdelta::Service for Python. Whatever computes or waits runs without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <type_traits>

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

// What Python calls a value of that type.
template <class T>
const char* python_type() {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_same_v<T, uint64_t>) return "int, 0 to 2^64-1";
  if constexpr (std::is_integral_v<T>) return sizeof(T) == 4 ? "int of 32 bits" : "int of 64 bits";
  if constexpr (std::is_floating_point_v<T>) return "float";
  if constexpr (std::is_same_v<T, std::string>) return "str";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "list of str";
  if constexpr (std::is_same_v<T, std::vector<int32_t>>) return "list of token ids";
  if constexpr (std::is_same_v<T, std::map<int32_t, float>>) return "dict of float by token id";
}

// Throws TypeError naming the option, what was given and what is accepted.
template <class T>
T value_of(const char* name, nb::handle given) {
  try {
    return nb::cast<T>(given);
  } catch (const nb::cast_error&) {
    throw nb::type_error(
        (std::string(name) + ": " + nb::repr(given).c_str() + ", expected " + python_type<T>()).c_str());
  }
}

template <class Options>
struct Option {
  const char* name;
  void (*set)(Options& o, const char* name, nb::handle value);
};

template <auto member, class Options, class T>
void assign(Options& o, const char* name, nb::handle value, T Options::*) {
  o.*member = value_of<T>(name, value);
}
template <auto member>
constexpr auto field = [](auto& o, const char* name, nb::handle value) { assign<member>(o, name, value, member); };

void constrain(GenerateOptions& o, Constraint constraint) {
  if (o.constraint)
    throw nb::value_error("regex, json_schema, json_object, grammar, choice: more than one given, expected one");
  o.constraint = std::move(constraint);
}
template <Constraint::Kind kind>
void constrain_text(GenerateOptions& o, const char* name, nb::handle value) {
  constrain(o, {.kind = kind, .text = value_of<std::string>(name, value)});
}
void constrain_choice(GenerateOptions& o, const char* name, nb::handle value) {
  constrain(o, {.kind = Constraint::Kind::choice, .choices = value_of<std::vector<std::string>>(name, value)});
}
void constrain_object(GenerateOptions& o, const char* name, nb::handle value) {
  if (value_of<bool>(name, value)) constrain(o, {.kind = Constraint::Kind::json_object});
}

using G = GenerateOptions;
constexpr Option<G> kGeneration[] = {{"temperature", field<&G::temperature>},
                                     {"top_p", field<&G::top_p>},
                                     {"top_k", field<&G::top_k>},
                                     {"min_p", field<&G::min_p>},
                                     {"repetition_penalty", field<&G::repetition_penalty>},
                                     {"presence_penalty", field<&G::presence_penalty>},
                                     {"frequency_penalty", field<&G::frequency_penalty>},
                                     {"logit_bias", field<&G::logit_bias>},
                                     {"seed", field<&G::seed>},
                                     {"max_tokens", field<&G::max_tokens>},
                                     {"min_tokens", field<&G::min_tokens>},
                                     {"stop", field<&G::stop>},
                                     {"stop_ids", field<&G::stop_ids>},
                                     {"ignore_eos", field<&G::ignore_eos>},
                                     {"logprobs", field<&G::logprobs>},
                                     {"show_specials", field<&G::show_specials>},
                                     {"regex", constrain_text<Constraint::Kind::regex>},
                                     {"json_schema", constrain_text<Constraint::Kind::json_schema>},
                                     {"json_object", constrain_object},
                                     {"grammar", constrain_text<Constraint::Kind::grammar>},
                                     {"choice", constrain_choice}};

using L = LoadOptions;
constexpr Option<L> kLoading[] = {{"device", field<&L::device>},
                                  {"exact", field<&L::exact>},
                                  {"dtype", field<&L::dtype>},
                                  {"state_dtype", field<&L::state_dtype>},
                                  {"kda_gate", field<&L::kda_gate>},
                                  {"threads", field<&L::threads>},
                                  {"isa", field<&L::isa>},
                                  {"force", field<&L::force>},
                                  {"max_length", field<&L::max_length>},
                                  {"token_budget", field<&L::token_budget>},
                                  {"max_sequences", field<&L::max_sequences>},
                                  {"cache_tokens", field<&L::cache_tokens>},
                                  {"drafts", field<&L::drafts>},
                                  {"draft_model", field<&L::draft_model>},
                                  {"prefix_snapshots", field<&L::prefix_snapshots>}};

template <class Options, size_t n>
std::vector<std::string> names_of(const Option<Options> (&known)[n]) {
  std::vector<std::string> names;
  for (const auto& option : known) names.push_back(option.name);
  return names;
}

// Sets what was given and is not None.
template <class Options, size_t n>
void set_all(Options& o, const nb::dict& given, const Option<Options> (&known)[n], const std::string& kind) {
  for (auto [key, value] : given) {
    const auto name = nb::cast<std::string>(key);
    const auto* option = std::find_if(known, known + n, [&](const auto& k) { return name == k.name; });
    if (option == known + n) {
      std::string message = "no " + kind + " option " + name + ", expected one of";
      for (const std::string& k : names_of(known)) message += (message.ends_with("of") ? " " : ", ") + k;
      throw nb::type_error(message.c_str());
    }
    if (!value.is_none()) option->set(o, option->name, value);
  }
}

LoadOptions load_options(const std::string& model, const nb::dict& given, const nb::object& progress) {
  LoadOptions o;
  o.model = model;
  set_all(o, given, kLoading, "load");
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

  // calls: of a chat that has tools; under a constraint they may be called beside it.
  Answer* submit(std::vector<int32_t> prompt, nb::dict options, bool chat, bool thinking, bool calls) {
    if (getpid() != owner_)
      throw std::runtime_error("the model was loaded by another process; after fork() load it anew");
    ServiceRequest request;
    request.task = {std::move(prompt), engine().default_generation()};
    set_all(request.task.options, options, kGeneration, "generation");
    if (auto& constraint = request.task.options.constraint; constraint && chat) constraint->calls = calls;
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
        throw std::runtime_error("this model was closed; load it anew");
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
  m.def("generation_options", [] { return names_of(kGeneration); });
  m.def("load_options", [] { return names_of(kLoading); });
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
