// Degree of infrequency (DoI, Herald) of each table, estimated from the stream with counts that decay. A key is
// frequent if at least one in `workers` samples has it. Several workers train a frequent key in nearly every step, so
// no single cache can keep its row. There are at most `workers` frequent keys per id of a sample, so only candidates
// are stored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "schedule/directory.h"
#include "schedule/schedule_batch.h"

namespace springtide {

class TableProfile {
 public:
  // a key is stored if its share is at least this fraction of the threshold for frequent keys
  static constexpr double kNear = 0.25;
  static constexpr double kWindow = 32;  // window in profiled batches; the weight of older batches decays

  explicit TableProfile(uint32_t workers) : workers_(workers) {}

  void look(const ScheduleBatch& batch) {
    if (batch.samples() == 0) return;
    ++looks_;
    const double fresh = std::max(1.0 / kWindow, 1.0 / static_cast<double>(looks_));
    weight_ = weight_ * (1 - fresh) + fresh;
    for (auto& [table, kept] : near_) {
      for (auto& [key, share] : kept) share *= 1 - fresh;
    }
    counts_.assign(batch.size(), 0);
    for (uint32_t unit : batch.units()) ++counts_[unit];
    const double near = kNear * batch.samples() / workers_;
    Shares* shares = nullptr;
    for (size_t unit = 0; unit < counts_.size(); ++unit) {  // table by table
      const TableId table = batch.tables()[unit];
      if (unit == 0 || batch.tables()[unit - 1] != table) shares = &near_[table];
      const double share = fresh * counts_[unit] / batch.samples();
      const Key key = batch.keys()[unit];
      if (counts_[unit] >= near) {
        (*shares)[key] += share;
      } else if (const auto found = shares->find(key); found != shares->end()) {
        found->second += share;
      }
    }
    for (auto& [table, kept] : near_) {
      std::erase_if(kept, [&](const auto& one) { return one.second < fresh * kNear / workers_; });
    }
  }
  // Returns the share of infrequent rows among the rows in use, which are rows that some worker caches and frequent
  // rows. Returns 1 for an unknown table.
  double infrequency(TableId table, const Directory& directory) const {
    const auto found = near_.find(table);
    if (found == near_.end()) return 1;
    uint64_t often = 0, outside = 0;
    for (const auto& [key, share] : found->second) {
      if (!frequent(share)) continue;
      ++often;
      outside += directory.find(table, key, hash_key(table, key)) == kNoRow;
    }
    const uint64_t in_use = directory.rows_of_table(table) + outside;
    return in_use == 0 ? 1 : 1 - static_cast<double>(often) / static_cast<double>(in_use);
  }
  // Returns the `count` tables among `tables` that have the highest degree of infrequency. If two are equal, the lower
  // id comes first.
  std::vector<TableId> best(std::span<const TableId> tables, size_t count, const Directory& directory) const {
    std::vector<std::pair<double, TableId>> ranked;
    for (TableId table : tables) ranked.emplace_back(-infrequency(table, directory), table);
    std::sort(ranked.begin(), ranked.end());
    ranked.erase(std::unique(ranked.begin(), ranked.end()), ranked.end());
    std::vector<TableId> found;
    for (size_t i = 0; i < std::min(count, ranked.size()); ++i) found.push_back(ranked[i].second);
    return found;
  }

 private:
  using Shares = std::unordered_map<Key, double>;  // share of samples that have the key
  bool frequent(double share) const { return share * workers_ >= weight_; }

  const uint32_t workers_;
  uint64_t looks_ = 0;
  double weight_ = 0;  // total weight of all profiled batches, which converges to 1
  std::map<TableId, Shares> near_;
  std::vector<uint32_t> counts_;  // by unit
};

}  // namespace springtide
