// The sequences of one step as arrays of a case, filled from rows on the host.
#pragma once

#include <vector>

#include "kdelta/ops/common/sequences.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {

struct SequenceRow {
  int len = 0, slot = -1, accepted = 1;
  bool fresh = false;
};
struct SnapshotRow {
  int sequence = 0, position = 0, slot = -1;
};

struct SequenceCase {
  // Prefill rows first, then decode rows. Columns past the first hold slot numbers that `more_slots` gives, row by row.
  SequenceCase(std::vector<SequenceRow> prefill_rows, std::vector<SequenceRow> decode_rows, int columns_ = 1,
               std::vector<SnapshotRow> snapshot_rows = {}, std::vector<int32_t> more_slots = {})
      : rows(prefill_rows),
        snapshots(std::move(snapshot_rows)),
        n_prefill(static_cast<int>(prefill_rows.size())),
        n_decode(static_cast<int>(decode_rows.size())),
        columns(columns_),
        more(std::move(more_slots)),
        cu({n_prefill + n_decode + 1}),
        slot({n_prefill + n_decode, columns_}),
        accepted({n_prefill + n_decode}),
        snapshot({static_cast<int64_t>(snapshots.size()), 3}),
        fresh({n_prefill + n_decode}) {
    rows.insert(rows.end(), decode_rows.begin(), decode_rows.end());
  }

  void add_to(EffectCase& c) {
    c.array("cu", cu);
    c.array("slot", slot);
    c.array("accepted", accepted);
    c.array("fresh", fresh);
    c.array("snapshot", snapshot);
  }
  void fill() {
    cu[0] = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto n = static_cast<int64_t>(i);
      cu[n + 1] = cu[n] + rows[i].len;
      for (int64_t k = 0; k < columns; ++k)
        slot[n * columns + k] = k == 0         ? rows[i].slot
                                : more.empty() ? 1000000
                                               : more[static_cast<size_t>(n * (columns - 1) + k - 1)];
      accepted[n] = rows[i].accepted;
      fresh[n] = rows[i].fresh ? 1 : 0;
    }
    for (size_t q = 0; q < snapshots.size(); ++q) {
      int32_t* entry = snapshot.data() + q * 3;
      entry[0] = snapshots[q].sequence, entry[1] = snapshots[q].position, entry[2] = snapshots[q].slot;
    }
  }
  Sequences at(const EffectCase::At& place) {
    Sequences s{.cu = place(cu),
                .slot = place(slot),
                .accepted = place(accepted),
                .fresh = place(fresh),
                .n_prefill = n_prefill,
                .n_decode = n_decode,
                .max_len = tokens()};
    if (!snapshots.empty()) s.snapshot = place(snapshot);
    return s;
  }
  int64_t tokens() const {
    int64_t sum = 0;
    for (const SequenceRow& r : rows) sum += r.len;
    return sum;
  }

  std::vector<SequenceRow> rows;
  std::vector<SnapshotRow> snapshots;
  int n_prefill, n_decode, columns;
  std::vector<int32_t> more;
  Guarded<int32_t> cu, slot, accepted, snapshot;
  Guarded<uint8_t> fresh;
};

}  // namespace kdelta::test
