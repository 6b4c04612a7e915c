// Degree of infrequency (DoI, Herald) per table, estimated from the stream. A key is frequent when at least
// one in `workers` samples has it: several workers train it in nearly every step, so no single cache can keep
// it. Counts decay slowly. A table with one id per sample has at most `workers` frequent keys, so only
// candidates are stored. In: batches of schedule.h. Out: a degree per table, and the tables worth scoring.
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
