// Threads of this process by their names, as top shows them, and what each has cost.
#pragma once

#include <map>
#include <string>

namespace kdelta::server {

// Names the calling thread; at most 15 letters. Always true.
bool name_thread(const char* name);
// Seconds of CPU of the threads that live, those of one name together.
std::map<std::string, double> cpu_of_threads();

}  // namespace kdelta::server
