#include "kdelta/core/exec.h"

#include <exception>

#include "kdelta/core/check.h"

namespace kdelta {

void Exec::expect_joined() const {
  KDELTA_CHECK(aux == nullptr || !aux->open, "a fork of ", to_string(device), " was never joined");
}

Fork::Fork(const Exec& main) : main_(main), side_(main), exceptions_(std::uncaught_exceptions()) {
  AuxQueue* aux = main.aux;
  if (aux == nullptr) return;
  main.expect_joined();
  if (!main.planning) {
    main.stream->record(*aux->forked);
    aux->stream->wait(*aux->forked);
  }
  side_.stream = aux->stream;
  side_.scratch = aux->scratch;
  side_.aux = nullptr;
  aux->open = true;
}

void Fork::join() {
  KDELTA_CHECK(!joined_, "a fork is joined twice");
  joined_ = true;
  side_.scratch = nullptr;
  AuxQueue* aux = main_.aux;
  if (aux == nullptr) return;
  aux->open = false;
  if (main_.planning) return;
  aux->stream->record(*aux->joined);
  main_.stream->wait(*aux->joined);
}

Fork::~Fork() {
  if (joined_ || std::uncaught_exceptions() == exceptions_) return;
  try {
    join();
  } catch (...) {  // the device is broken: the exception under way says so
  }
}

}  // namespace kdelta
