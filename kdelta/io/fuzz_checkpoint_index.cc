// Any text as an index: refused with an Error, or its entries are ordered, unique and name plain files.
#include "kdelta/core/check.h"
#include "kdelta/io/checkpoint_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kdelta;
  try {
    const auto index = parse_checkpoint_index({reinterpret_cast<const char*>(data), size}, "fuzz");
    for (size_t i = 0; i < index.entries.size(); ++i) {
      const auto& entry = index.entries[i];
      KDELTA_CHECK(i == 0 || index.entries[i - 1].tensor < entry.tensor, i);
      const std::string& shard = index.shards.at(static_cast<size_t>(entry.shard));
      KDELTA_CHECK(shard.find('/') == shard.npos && shard != ".." && shard != "." && !shard.empty(), shard);
    }
  } catch (const Error& e) {
    if (e.code() != ErrorCode::bad_file) throw;
  }
  return 0;
}
