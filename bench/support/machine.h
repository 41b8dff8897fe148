// Who measured: processor, instruction set, commit, date. Every result file carries it.
#pragma once

#include <string>

namespace kdelta::bench {

struct Machine {
  std::string cpu;     // "AMD EPYC, family 26 model 2"
  std::string folder;  // the same as a folder name: "amd-epyc-f26m2"
  std::string isa;
  int cpus = 0;
  std::string commit;  // abbreviated hash, "+changes" when the tree differs, "unknown" outside a repository
  std::string date;    // YYYY-MM-DD, UTC
};

Machine this_machine();

}  // namespace kdelta::bench
