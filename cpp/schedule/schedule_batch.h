// A batch for the scheduler: its distinct keys, and every sample as a list of them. Next: schedule.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "base/types.h"
#include "step/dedup.h"

namespace springtide {

// Ids of one feature for all samples of a batch. Without offsets each sample has one id.
struct BatchFeature {
  TableId table = 0;
  std::span<const Key> ids;
  std::span<const int64_t> offsets;  // size samples + 1, rising from 0 to ids.size(); or empty
};

class ScheduleBatch {
 public:
  // Takes a batch in the place of the one before; memory is used again. BadInput when a feature does not fit.
  void read(std::span<const BatchFeature> features, uint32_t samples, ThreadPool& crew);

  uint32_t samples() const { return samples_; }
  size_t size() const { return keys_.size(); }  // distinct keys
  std::span<const Key> keys() const { return keys_; }
  std::span<const TableId> tables() const { return tables_; }
  std::span<const uint64_t> hashes() const { return hashes_; }
  std::span<const uint32_t> sample_begin() const { return sample_begin_; }
  std::span<const uint32_t> units() const { return units_; }
  // Every sample has one id of each feature and no two features share a table: position f of a sample is
  // feature f's key.
  bool uniform() const { return uniform_; }
  std::span<const TableId> feature_tables() const { return feature_tables_; }

 private:
  struct TableOfBatch {
    TableId table = 0;
    std::vector<uint32_t> features;
    std::vector<Key> keys;
    std::vector<uint64_t> hashes;
    uint32_t base = 0;
  };
  void check(std::span<const BatchFeature> features) const;
  void group(std::span<const BatchFeature> features);
  void find_units(TableOfBatch& table, std::span<const BatchFeature> features);
  void join();
  void lay_out_uniform(std::span<const BatchFeature> features);
  void lay_out_bags(std::span<const BatchFeature> features);

  uint32_t samples_ = 0;
  bool uniform_ = true;
  std::vector<TableOfBatch> by_table_;  // the first `used_` are of this batch
  size_t used_ = 0;
  std::vector<TableId> feature_tables_;
  std::vector<uint32_t> table_of_feature_;  // into by_table_
  std::vector<size_t> feature_begin_;       // into occurrences_
  std::vector<uint32_t> occurrences_;       // feature by feature: index of a key in its table
  std::vector<Key> keys_;
  std::vector<TableId> tables_;
  std::vector<uint64_t> hashes_;
  std::vector<uint32_t> sample_begin_, units_, seen_;
};

}  // namespace springtide
