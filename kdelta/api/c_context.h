// kdelta_context: a device, the CPU's threads, options. One operator at a time.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>

#include "kdelta/api/c_base.h"
#include "kdelta/core/exec.h"

struct kdelta_context {
  kdelta::Device device;
  kdelta::Options options;
  std::unique_ptr<kdelta::ThreadPool> threads;  // of the CPU
  std::mutex busy;
  pid_t owner = 0;
};
