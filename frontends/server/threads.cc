#include "frontends/server/threads.h"

#include <pthread.h>

#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>

namespace kdelta::server {

bool name_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
  return true;
}

std::map<std::string, double> cpu_of_threads() {
  std::map<std::string, double> all;
  std::error_code ended;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", ended)) {
    const std::string number = entry.path().filename();
    int thread = 0;
    std::from_chars(number.data(), number.data() + number.size(), thread);
    std::string name;
    std::ifstream comm(entry.path() / "comm");
    std::getline(comm, name);
    // The clock of a thread by its number, as pthread_getcpuclockid makes it of a handle.
    timespec time{};
    if (clock_gettime((~static_cast<clockid_t>(thread) << 3) | 6, &time) != 0) continue;
    all[name] += static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  return all;
}

}  // namespace kdelta::server
