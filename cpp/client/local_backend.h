// Backend of tables in this process: for a job of one process, and for tests of several servers without
// sockets.
#pragma once

#include <memory>
#include <vector>

#include "step/backend.h"
#include "store/store.h"

namespace springtide {

class LocalBackend final : public Backend {
 public:
  // Slots are shared out over the stores in runs, one store a "server".
  LocalBackend(const StoreOptions& options, uint16_t servers);
  LocalBackend(const LocalBackend&) = delete;
  LocalBackend& operator=(const LocalBackend&) = delete;

  std::shared_ptr<const Placement> placement() const override { return std::make_shared<const Placement>(placement_); }
  void declare(std::span<const TableSpec> tables) override;
  std::unique_ptr<Pending> pull(std::span<const Part> parts, const PullMeta& meta) override;
  std::unique_ptr<Pending> push(std::span<const Part> parts, const PushMeta& meta) override;
  void assign(std::span<const Part> parts, bool keep) override;
  void scan(TableId table, std::vector<Key>& keys, std::vector<float>& rows) override;

  Store& store(size_t server) { return *stores_.at(server); }
  size_t servers() const { return stores_.size(); }

 private:
  void push_summed(size_t server, std::span<const Part> parts, std::span<const TableId> hyper_tables,
                   std::span<const Hyper> hyper, uint64_t clock);

  void push_once(size_t server, std::span<const Part> parts, std::span<const TableId> hyper_tables,
                 std::span<const Hyper> hyper, const PushMeta& meta);

  Placement placement_;
  std::vector<std::unique_ptr<Store>> stores_;
  std::vector<std::vector<uint8_t>> own_slots_;  // of each store: a mask by slot, empty when it has all
};

}  // namespace springtide
