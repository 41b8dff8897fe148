#include "kdelta/core/fault.h"

#include <utility>

namespace kdelta {

std::string fault_names(uint32_t faults) {
  constexpr std::pair<Fault, const char*> kNames[] = {{Fault::token, "token"},
                                                      {Fault::boundaries, "cu"},
                                                      {Fault::accepted, "accepted"},
                                                      {Fault::slot, "slot"},
                                                      {Fault::shared_slot, "shared slot"},
                                                      {Fault::length, "decode length"},
                                                      {Fault::snapshot, "snapshot"},
                                                      {Fault::position, "position"},
                                                      {Fault::count, "expert count"},
                                                      {Fault::page, "page"},
                                                      {Fault::row, "row"}};
  std::string out;
  for (const auto& [fault, name] : kNames)
    if ((faults & static_cast<uint32_t>(fault)) != 0) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

}  // namespace kdelta
