#include "server/requests/row_runs.h"

#include <algorithm>

#include "base/hash.h"
#include "store/kernels/finite.h"

namespace springtide {
namespace {

std::vector<Run> window_runs(const BodyView& body, const Window& window, Dims& dims) {
  std::vector<Run> runs;
  size_t key = 0;
  for (const FloatSpan& span : body.spans) {
    auto* floats =
        reinterpret_cast<float*>(window.valid() ? window.at(span.offset, span.bytes, sizeof(float)) : nullptr);
    if (floats == nullptr) throw BadInput("a run of rows lies outside the shared window");
    const size_t first = key;
    uint64_t bytes = 0;
    while (bytes < span.bytes && key < body.tables.size()) bytes += sizeof(float) * dims.of(body.tables[key++]);
    if (bytes != span.bytes) throw BadInput("a run of rows does not end with a row");
    runs.push_back({first, key - first, floats});
  }
  if (key != body.tables.size()) {
    throw BadInput("rows of ", body.tables.size() - key, " keys are missing");
  }
  return runs;
}

}  // namespace

uint32_t Dims::learn(TableId table) {
  const auto dim = static_cast<uint32_t>(store_.row_floats({&table, 1}));
  if (table >= known_.size()) known_.resize(table + size_t{1}, 0);
  known_[table] = dim;
  return dim;
}

uint64_t Dims::floats(std::span<const TableId> tables) {
  uint32_t common = 0;
  return floats(tables, common);
}

uint64_t Dims::floats(std::span<const TableId> tables, uint32_t& common) {
  const uint32_t first = tables.empty() ? 0 : of(tables[0]);
  const uint32_t* known = known_.data();
  size_t ids = known_.size();  // a local copy, because the compiler must assume that learn() changes the members
  uint64_t sum = 0;
  uint32_t differ = 0;
  for (const TableId table : tables) {
    if (table >= ids || known[table] == 0) [[unlikely]] {
      learn(table);
      known = known_.data();
      ids = known_.size();
    }
    sum += known[table];
    differ |= known[table] ^ first;
  }
  common = differ == 0 ? first : 0;
  return sum;
}

std::vector<Run> runs_of(const FrameHeader& header, const BodyView& body, const Window& window, Dims& dims) {
  if ((header.flags & kInWindow) != 0) return window_runs(body, window, dims);
  const uint64_t wanted = dims.floats(body.tables);
  throw_if<BadInput>(body.floats.size() != wanted, body.floats.size(), " floats came for ", body.keys.size(),
                     " keys whose tables ask for ", wanted);
  return {{0, body.keys.size(), const_cast<float*>(body.floats.data())}};
}

std::vector<Run> reply_runs(const FrameHeader& header, const BodyView& body, const Window& window, Dims& dims) {
  if (!body.floats.empty()) throw BadInput("a pull carries no floats");
  if ((header.flags & kInWindow) != 0 && !body.spans.empty()) return window_runs(body, window, dims);
  return {};
}

std::vector<uint16_t> foreign_slots(const BodyView& body, const SlotOwnership& owned, uint32_t slots,
                                    std::vector<uint8_t>& keep) {
  keep.clear();
  if (owned.all) return {};
  keep.resize(body.keys.size());
  std::vector<uint16_t> foreign;
  for (size_t i = 0; i < keep.size(); ++i) {
    const uint32_t slot = slot_of(hash_key(body.tables[i], body.keys[i]), slots);
    keep[i] = owned.mine[slot];
    if (keep[i] == 0) foreign.push_back(static_cast<uint16_t>(slot));
  }
  std::sort(foreign.begin(), foreign.end());
  foreign.erase(std::unique(foreign.begin(), foreign.end()), foreign.end());
  if (foreign.empty()) keep.clear();
  return foreign;
}

StepPart gathered(const BodyView& body, std::span<const Run> runs, std::span<const uint8_t> keep, Dims& dims) {
  StepPart part;
  for (const Run& run : runs) {
    const float* row = run.floats;
    for (size_t i = run.first; i < run.first + run.keys; ++i) {
      const uint32_t dim = dims.of(body.tables[i]);
      if (keep.empty() || keep[i] != 0) {
        StepRowsIn& to = is_image(body.tables[i]) ? part.images : part.grads;
        to.tables.push_back(body.tables[i]);
        to.keys.push_back(body.keys[i]);
        to.floats.insert(to.floats.end(), row, row + dim);
      }
      row += dim;
    }
  }
  return part;
}

void check_finite(const BodyView& body, std::span<const Run> runs, Dims& dims, const Store& store) {
  for (const Run& run : runs) {
    const auto tables = body.tables.subspan(run.first, run.keys);
    if (all_finite(run.floats, dims.floats(tables))) continue;
    const float* row = run.floats;
    for (size_t i = 0; i < run.keys; ++i) {
      const uint32_t dim = dims.of(tables[i]);
      if (!is_image(tables[i]) && !all_finite(row, dim)) {
        throw NonFinite("the gradient of key ", body.keys[run.first + i], " of table '", store.spec(tables[i]).name,
                        "' holds NaN or infinity; nothing of this push was applied");
      }
      row += dim;
    }
  }
}

std::vector<uint8_t> covered_slots(const FrameHeader& header, const BodyView& body, const SlotOwnership& owned) {
  const bool named = (header.flags & kNamesSlots) != 0;
  if (!named && owned.all && header.epoch >= owned.newest) return {};
  const size_t slots = owned.slots;
  std::vector<uint8_t> covered(slots, named ? 0 : 1);
  for (const uint16_t slot : body.slots) covered[slot] = 1;
  if (!named && !owned.mine.empty()) {
    for (size_t slot = 0; slot < slots; ++slot) {
      const bool kept = owned.mine[slot] != 0 && owned.since[slot] <= header.epoch;
      covered[slot] = static_cast<uint8_t>(covered[slot] & static_cast<uint8_t>(kept));
    }
  }
  return covered;
}

}  // namespace springtide
