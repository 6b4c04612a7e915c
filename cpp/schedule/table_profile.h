// How infrequent the keys of each table are, from the stream itself: Herald's degree of infrequency (DoI).
// A key is frequent when it comes at least as often as one worker trains samples, that is, in one of
// `workers` samples or more; such a key is trained by several workers at once nearly always and cannot be
// kept in one place. On a stream without end this is counted over a window that forgets slowly. At most
// `workers` keys of a table with one id a sample can be frequent, so only those that come near are
// remembered. In: batches, as schedule.h reads them. Out: a degree for every table, and the tables worth
// scoring.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "schedule/directory.h"
#include "schedule/schedule_batch.h"

namespace springtide {

class TableProfile {
 public:
  static constexpr double kWindow = 32;  // batches that were looked at; older ones fade

  explicit TableProfile(uint32_t workers) : workers_(workers) {}

  void look(const ScheduleBatch& batch);
  // Of the rows in use (cached by anyone, or frequent), the share that is infrequent; 1 for a table never
  // seen.
  double infrequency(TableId table, const Directory& directory) const;
  // The `count` tables among `tables` with the highest degree; of equals the lower id.
  std::vector<TableId> best(std::span<const TableId> tables, size_t count, const Directory& directory) const;
  uint64_t looks() const { return looks_; }

 private:
  using Shares = std::unordered_map<Key, double>;  // of samples that have the key
  bool frequent(double share) const;

  const uint32_t workers_;
  uint64_t looks_ = 0;
  double weight_ = 0;  // of all looks so far, 1 in the end
  std::map<TableId, Shares> near_;
  std::vector<uint32_t> counts_;  // by unit
};

}  // namespace springtide
