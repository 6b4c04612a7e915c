// A batch for the scheduler: its distinct keys, and every sample as a list of them. Next: schedule.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/thread_pool.h"
#include "base/types.h"
#include "step/dedup.h"

namespace springtide {

// Ids of one feature for all samples of a batch. Without offsets, each sample has one id.
struct BatchFeature {
  TableId table = 0;
  std::span<const Key> ids;
  std::span<const int64_t> offsets;  // of size samples + 1, ascending from 0 to ids.size(); or empty
};

class ScheduleBatch {
 public:
  // Replaces the previous batch and reuses its memory. Throws BadInput if the sizes of a feature are wrong.
  void read(std::span<const BatchFeature> features, uint32_t samples, ThreadPool& crew) {
    samples_ = samples;
    check(features);
    group(features);
    crew.run(static_cast<uint32_t>(used_), [&](uint32_t t) { find_units(by_table_[t], features); });
    join();
    uniform_ = used_ == features.size() &&
               std::all_of(features.begin(), features.end(), [](const BatchFeature& f) { return f.offsets.empty(); });
    uniform_ ? lay_out_uniform(features) : lay_out_bags(features);
  }

  uint32_t samples() const { return samples_; }
  size_t size() const { return keys_.size(); }  // distinct keys
  std::span<const Key> keys() const { return keys_; }
  std::span<const TableId> tables() const { return tables_; }
  std::span<const uint64_t> hashes() const { return hashes_; }
  std::span<const uint32_t> sample_begin() const { return sample_begin_; }
  std::span<const uint32_t> units() const { return units_; }
  // Returns true if every sample has one id of each feature and each feature has its own table. Position f of a sample
  // is then the key of feature f.
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
  void check(std::span<const BatchFeature> features) const {
    for (size_t f = 0; f < features.size(); ++f) {
      const auto& [table, ids, offsets] = features[f];
      const std::string which = "feature " + std::to_string(f) + " (table " + std::to_string(table) + ")";
      if (ids.size() > UINT32_MAX / 2) throw BadInput(which, " has too many ids for one batch");
      if (offsets.empty()) {
        throw_if<BadInput>(ids.size() != samples_, which, " has ", ids.size(), " ids for ", samples_,
                           " samples; give offsets when a sample has not exactly one id");
        continue;
      }
      throw_if<BadInput>(offsets.size() != size_t{samples_} + 1 || offsets.front() != 0 ||
                             offsets.back() != static_cast<int64_t>(ids.size()) ||
                             !std::is_sorted(offsets.begin(), offsets.end()),
                         which, ": offsets must rise from 0 to the number of ids (", ids.size(),
                         ") with one more than there are samples (", samples_, ")");
    }
  }
  // Groups the features by table; features of one table share one set of keys.
  void group(std::span<const BatchFeature> features) {
    used_ = 0;
    feature_tables_.clear();
    table_of_feature_.clear();
    feature_begin_.assign(1, 0);
    for (uint32_t f = 0; f < features.size(); ++f) {
      feature_begin_.push_back(feature_begin_.back() + features[f].ids.size());
      feature_tables_.push_back(features[f].table);
      size_t t = 0;
      while (t < used_ && by_table_[t].table != features[f].table) ++t;
      if (t == used_) {
        if (by_table_.size() == used_) by_table_.emplace_back();
        by_table_[t].table = features[f].table;
        by_table_[t].features.clear();
        ++used_;
      }
      by_table_[t].features.push_back(f);
      table_of_feature_.push_back(static_cast<uint32_t>(t));
    }
    occurrences_.resize(feature_begin_.back());
  }
  void find_units(TableOfBatch& table, std::span<const BatchFeature> features) {
    size_t ids = 0;
    for (uint32_t f : table.features) ids += features[f].ids.size();
    table.keys.resize(ids);
    table.hashes.resize(ids);
    // Each thread has one index for all its tables, so that the index stays in the L1 and L2 caches.
    thread_local KeyIndex shared;
    const KeyIndex::Filling index = shared.begin(ids);
    uint32_t count = 0;
    for (uint32_t f : table.features) {
      uint32_t* out = occurrences_.data() + feature_begin_[f];
      for (Key key : features[f].ids) {
        const uint64_t hash = hash_key(table.table, key);
        const uint32_t unit = index.find_or_add(key, hash, count);
        // The key is written even if it is not new, to avoid a branch. The next key then overwrites it.
        table.keys[count] = key;
        table.hashes[count] = hash;
        count += unit == count;
        *out++ = unit;
      }
    }
    table.keys.resize(count);
    table.hashes.resize(count);
  }
  void join() {
    size_t total = 0;
    for (size_t t = 0; t < used_; ++t) {
      by_table_[t].base = static_cast<uint32_t>(total);
      total += by_table_[t].keys.size();
    }
    keys_.clear();
    hashes_.clear();
    tables_.clear();
    for (size_t t = 0; t < used_; ++t) {
      keys_.insert(keys_.end(), by_table_[t].keys.begin(), by_table_[t].keys.end());
      hashes_.insert(hashes_.end(), by_table_[t].hashes.begin(), by_table_[t].hashes.end());
      tables_.insert(tables_.end(), by_table_[t].keys.size(), by_table_[t].table);
    }
  }
  void lay_out_uniform(std::span<const BatchFeature> features) {
    const size_t width = features.size();
    sample_begin_.resize(size_t{samples_} + 1);
    for (uint32_t i = 0; i <= samples_; ++i) sample_begin_[i] = static_cast<uint32_t>(i * width);
    units_.resize(samples_ * width);
    for (size_t f = 0; f < width; ++f) {
      const uint32_t base = by_table_[table_of_feature_[f]].base;
      const uint32_t* from = occurrences_.data() + feature_begin_[f];
      uint32_t* to = units_.data() + f;
      for (uint32_t i = 0; i < samples_; ++i, to += width) *to = base + from[i];
    }
  }
  void lay_out_bags(std::span<const BatchFeature> features) {
    seen_.assign(size(), UINT32_MAX);
    sample_begin_.clear();
    units_.clear();
    for (uint32_t i = 0; i < samples_; ++i) {
      sample_begin_.push_back(static_cast<uint32_t>(units_.size()));
      for (size_t f = 0; f < features.size(); ++f) {
        const auto& offsets = features[f].offsets;
        const size_t first = offsets.empty() ? i : static_cast<size_t>(offsets[i]);
        const size_t end = offsets.empty() ? i + 1 : static_cast<size_t>(offsets[i + 1]);
        const uint32_t base = by_table_[table_of_feature_[f]].base;
        for (size_t at = first; at < end; ++at) {
          const uint32_t unit = base + occurrences_[feature_begin_[f] + at];
          if (seen_[unit] == i) continue;
          seen_[unit] = i;
          units_.push_back(unit);
        }
      }
    }
    sample_begin_.push_back(static_cast<uint32_t>(units_.size()));
  }

  uint32_t samples_ = 0;
  bool uniform_ = true;
  std::vector<TableOfBatch> by_table_;  // the first `used_` entries belong to the current batch
  size_t used_ = 0;
  std::vector<TableId> feature_tables_;
  std::vector<uint32_t> table_of_feature_;  // into by_table_
  std::vector<size_t> feature_begin_;       // into occurrences_
  std::vector<uint32_t> occurrences_;       // feature by feature, the index of each id's key in its table
  std::vector<Key> keys_;
  std::vector<TableId> tables_;
  std::vector<uint64_t> hashes_;
  std::vector<uint32_t> sample_begin_, units_, seen_;
};

}  // namespace springtide
