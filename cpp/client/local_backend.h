// Backend of tables in this process: for a job of one process, and for tests of several servers without sockets.
#pragma once

#include <memory>
#include <vector>

#include "step/backend.h"
#include "store/store.h"

namespace springtide {

class Done final : public Pending {
 public:
  void wait() override {}
  bool done() override { return true; }
};

class LocalBackend : public Backend {
 public:
  // Divides the slots into contiguous ranges, one for each store. Each store then acts as one server.
  LocalBackend(const StoreOptions& options, uint16_t servers) {
    if (servers == 0 || servers > options.slots)
      throw BadInput(servers, " servers for ", options.slots, " slots; wanted 1 to ", options.slots);
    placement_.servers = servers;
    placement_.server_of_slot.resize(options.slots);
    for (size_t slot = 0; slot < options.slots; ++slot)
      placement_.server_of_slot[slot] = static_cast<uint16_t>(slot * servers / options.slots);
    for (size_t s = 0; s < servers; ++s) {
      stores_.push_back(std::make_unique<Store>(options));
      std::vector<uint8_t> own;
      for (const uint16_t server : placement_.server_of_slot) own.push_back(server == s ? 1 : 0);
      own_slots_.push_back(servers == 1 ? std::vector<uint8_t>() : std::move(own));
    }
  }

  std::shared_ptr<const Placement> placement() const override { return std::make_shared<const Placement>(placement_); }
  uint64_t declare(std::span<const TableSpec> tables) override {
    uint64_t age = 0;
    for (const auto& store : stores_) {
      for (const TableSpec& spec : tables) store->declare(spec);
      age = std::max(age, store->clock.now());
    }
    return age;
  }
  std::unique_ptr<Pending> pull(std::span<const Part> parts, const PullMeta&) override {
    for (size_t s = 0; s < stores_.size(); ++s)
      for (const Slice& slice : slices_of(parts, s)) stores_[s]->pull(slice.tables(), slice.keys(), slice.rows());
    return std::make_unique<Done>();
  }
  // Gradients were checked when the parts were made, so the store does not check them again.
  std::unique_ptr<Pending> push(std::span<const Part> all, const PushMeta& meta) override {
    std::vector<Part> parts, images;
    for (const Part& part : all) (part.holds_images() ? images : parts).push_back(part);
    const bool summed = !meta.unique && parts.size() > 1, once = !meta.batches.empty() && !meta.bsp;
    for (size_t s = 0; s < stores_.size(); ++s) {
      if (once || summed) {
        push_together(s, parts, meta, once);
        continue;
      }
      for (const Slice& slice : slices_of(parts, s))
        stores_[s]->push(slice.tables(), slice.keys(), slice.rows(), meta.hyper, meta.clock, meta.unique);
    }
    assign(images, false);
    return std::make_unique<Done>();
  }
  void assign(std::span<const Part> parts, bool keep) override {
    for (size_t s = 0; s < stores_.size(); ++s)
      for (const Slice& slice : slices_of(parts, s))
        stores_[s]->assign(slice.tables(), slice.keys(), slice.rows(), nullptr, keep);
  }
  void scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) override {
    for (size_t slot = 0; slot < placement_.server_of_slot.size(); ++slot) {
      std::vector<Key> slot_keys;
      std::vector<float> slot_rows;
      stores_[placement_.server_of_slot[slot]]->scan(table, static_cast<uint32_t>(slot), slot_keys, slot_rows);
      keys.insert(keys.end(), slot_keys.begin(), slot_keys.end());
      rows.insert(rows.end(), slot_rows.begin(), slot_rows.end());
    }
  }

  Store& store(size_t server) { return *stores_.at(server); }

 private:
  // Pushes all parts in one call, so that the store can sum duplicates over all parts and records each batch once.
  void push_together(size_t server, std::span<const Part> parts, const PushMeta& meta, bool once) {
    std::vector<TableId> tables;
    std::vector<Key> keys;
    std::vector<RowRun> runs;
    std::vector<float> grads;
    for (const Slice& slice : slices_of(parts, server)) {
      tables.insert(tables.end(), slice.tables().begin(), slice.tables().end());
      keys.insert(keys.end(), slice.keys().begin(), slice.keys().end());
      runs.push_back({slice.keys().size(), slice.rows()});
      if (!once) grads.insert(grads.end(), slice.rows(), slice.rows() + slice.floats());
    }
    if (!once) {
      if (!keys.empty()) stores_[server]->push(tables, keys, grads.data(), meta.hyper, meta.clock, false);
      return;
    }
    const OnceStats stats = stores_[server]->push_once({tables, keys, runs}, meta.hyper, meta.clock, meta.unique,
                                                       {meta.batches, own_slots_[server]});
    if (!stats.torn.empty()) throw PartlyApplied(describe_torn(*stores_[server], meta.batches, stats.torn));
  }

  Placement placement_;
  std::vector<std::unique_ptr<Store>> stores_;
  // for each store, a mask of its slots; empty if the store has all slots
  std::vector<std::vector<uint8_t>> own_slots_;
};

}  // namespace springtide
