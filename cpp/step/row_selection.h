// Selects some rows of a request and copies them to separate memory: rows that a cache does not have, does not train
// itself, or writes back. Out: a Part for the backend behind the cache.
#pragma once

#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "step/backend.h"
#include "step/row_set.h"

namespace springtide {

// Reusable memory for row selections.
class StagingPool {
 public:
  explicit StagingPool(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}
  Backend& backend() { return *backend_; }
  std::unique_ptr<FloatBuffer> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<FloatBuffer>();
    auto buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }
  void give_back(std::unique_ptr<FloatBuffer> buffer) {
    const std::lock_guard lock(mutex_);
    if (buffer && free_.size() < kKept) free_.push_back(std::move(buffer));
  }

 private:
  static constexpr size_t kKept = 16;
  std::shared_ptr<Backend> backend_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<FloatBuffer>> free_;
};

class RowSelection : public NoCopy {
 public:
  RowSelection(std::shared_ptr<StagingPool> pool, uint64_t version) : pool_(std::move(pool)) {
    routed_.version = version;
    routed_.row_offset = {0};
    routed_.server_begin = {0};
  }
  ~RowSelection() { pool_->give_back(std::move(memory_)); }

  // Rows must be added in the order (server, slot). `home` is the row in the caller's memory.
  void add(TableId table, Key key, uint32_t floats, float* home) {
    routed_.tables.push_back(table);
    routed_.keys.push_back(key);
    routed_.row_offset.push_back(routed_.row_offset.back() + floats);
    home_.push_back(home);
  }
  void end_server() { routed_.server_begin.push_back(static_cast<uint32_t>(home_.size())); }

  size_t size() const { return home_.size(); }
  uint64_t floats() const { return routed_.row_offset.back(); }
  uint64_t wire_bytes() const { return floats() * sizeof(float) + size() * (sizeof(Key) + sizeof(TableId)); }
  const Routed& routed() const { return routed_; }
  float* home(size_t i) const { return home_[i]; }
  const float* row(size_t i) const { return memory_->data() + routed_.row_offset[i]; }

  Part part() {  // call this function after all rows are added; the memory is uninitialized
    memory_ = pool_->take();
    return {&routed_, memory_->get(pool_->backend(), floats())};
  }
  void copy_in() const {  // from the caller's memory
    for (size_t i = 0; i < size(); ++i) std::memcpy(memory_->data() + routed_.row_offset[i], home_[i], bytes(i));
  }
  void copy_home() const {
    for (size_t i = 0; i < size(); ++i) std::memcpy(home_[i], row(i), bytes(i));
  }

 private:
  size_t bytes(size_t i) const { return sizeof(float) * (routed_.row_offset[i + 1] - routed_.row_offset[i]); }

  std::shared_ptr<StagingPool> pool_;
  Routed routed_;
  std::vector<float*> home_;
  std::unique_ptr<FloatBuffer> memory_;
};

}  // namespace springtide
