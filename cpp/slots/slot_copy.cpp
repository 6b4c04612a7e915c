#include "slots/slot_copy.h"

#include <map>
#include <unordered_set>

#include "base/half.h"

namespace springtide {
namespace {

using HashSet = std::unordered_set<uint64_t>;

void add_all(HashSet& to, const Column<uint64_t>& hashes) {
  for (size_t i = 0; i < hashes.size(); ++i) to.insert(hashes[i]);
}

// A range of entries of a table's columns that stay in the result.
struct Run {
  size_t first = 0, count = 0;
};

std::vector<Run> staying(const Column<uint64_t>& hashes, const HashSet& stale) {
  if (stale.empty()) return {{0, hashes.size()}};
  std::vector<Run> runs;
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (stale.contains(hashes[i])) continue;
    if (runs.empty() || runs.back().first + runs.back().count != i) runs.push_back({i, 0});
    ++runs.back().count;
  }
  return runs;
}

uint64_t total(const std::vector<Run>& runs) {
  uint64_t sum = 0;
  for (const Run& run : runs) sum += run.count;
  return sum;
}

// The entries of one image's part of a table that stay in the result.
struct Source {
  TableImage table;
  std::vector<Run> rows, waiting;
};

struct Merged {
  TableShape shape;
  HashSet stale;
  std::vector<Source> sources;
  Column<uint64_t> gone;

  void know(const TableFormat& format) { shape = {format, 0, 0, 0}; }

  void count() {
    for (const Source& source : sources) {
      shape.rows += total(source.rows);
      shape.waiting += total(source.waiting);
    }
    shape.gone = gone.size();
  }

  // Writes the columns, each as a list of pieces.
  void write(ScatteredImage& to) const {
    const size_t weight_bytes = size_t{shape.dim} * bytes_of(shape.dtype), state_bytes = size_t{shape.state_floats} * 4;
    each(to, &Source::rows, 8, [](const TableImage& t) { return t.rows.at; });
    each(to, &Source::rows, 8, [](const TableImage& t) { return t.row_ages.at; });
    each(to, &Source::rows, weight_bytes, [](const TableImage& t) { return t.weights.at; });
    each(to, &Source::rows, state_bytes, [](const TableImage& t) { return t.state.at; });
    each(to, &Source::waiting, 8, [](const TableImage& t) { return t.waiting.at; });
    each(to, &Source::waiting, 8, [](const TableImage& t) { return t.waiting_ages.at; });
    each(to, &Source::waiting, 4, [](const TableImage& t) { return t.waiting_counts.at; });
    if (gone.size() != 0) to.pieces.push_back({gone.at, gone.size() * 8});
  }

 private:
  template <class Column>
  void each(ScatteredImage& to, std::vector<Run> Source::* runs, size_t width, Column column) const {
    if (width == 0) return;
    for (const Source& source : sources) {
      for (const Run& run : source.*runs) {
        if (run.count != 0) to.pieces.push_back({column(source.table) + run.first * width, run.count * width});
      }
    }
  }
};

}  // namespace

void merge(std::span<const SlotImage> parts, const SlotImage& later, const SlotImage& end, ScatteredImage& to) {
  std::map<TableId, Merged> tables;
  for (const TableImage& t : later.tables) {
    Merged& merged = tables[t.id];
    merged.know(t);
    add_all(merged.stale, t.rows);
    add_all(merged.stale, t.waiting);
    add_all(merged.stale, t.gone);
  }
  for (const SlotImage& part : parts) {
    for (const TableImage& t : part.tables) {
      Merged& merged = tables[t.id];
      merged.know(t);
      merged.sources.push_back({t, staying(t.rows, merged.stale), staying(t.waiting, merged.stale)});
    }
  }
  for (const TableImage& t : later.tables) {
    tables[t.id].sources.push_back({t, {{0, t.rows.size()}}, {{0, t.waiting.size()}}});
  }
  for (const TableImage& t : end.tables) {
    tables[t.id].know(t);
    tables[t.id].gone = t.gone;
  }
  std::vector<TableShape> shapes;
  for (auto& [id, merged] : tables) {
    merged.count();
    const TableShape& shape = merged.shape;
    if (shape.rows + shape.waiting + shape.gone != 0) shapes.push_back(shape);
  }
  to.heads = heads_of(end, shapes);
  to.pieces.assign(1, to.heads.slot);
  size_t at = 0;
  for (const auto& [id, merged] : tables) {
    if (at == shapes.size() || shapes[at].id != id) continue;
    to.pieces.push_back(to.heads.tables[at++]);
    merged.write(to);
  }
  to.bytes = 0;
  for (const auto piece : to.pieces) to.bytes += piece.size();
}

std::span<const uint8_t> SlotCopy::next(size_t count) {
  if (given_ == 0) count = std::max(count, kUnsummed);
  std::span<const uint8_t> found;
  together_.clear();
  while (piece_ != image_.pieces.size() && together_.size() < count) {
    const auto rest = image_.pieces[piece_].subspan(inside_);
    if (rest.size() >= kAlone && !together_.empty()) break;
    const auto some = rest.first(std::min(rest.size(), count - together_.size()));
    inside_ += some.size();
    if (some.size() == rest.size()) ++piece_, inside_ = 0;
    if (rest.size() >= kAlone) {
      found = some;
      break;
    }
    together_.insert(together_.end(), some.begin(), some.end());
  }
  if (found.empty()) found = together_;
  sum_.add(given_ == 0 ? found.subspan(std::min(kUnsummed, found.size())) : found);
  given_ += found.size();
  if (given_ == size() && !found.empty()) sum_.add(identities());
  return found;
}

}  // namespace springtide
