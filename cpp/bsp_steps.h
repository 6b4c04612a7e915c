// Bulk-synchronous steps on one server: parts of a step wait here until every rank's is there, then are
// applied once, the gradients of a key summed in rank order. In: parts of pushes. Out: one Store::push a
// step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "store.h"

namespace springtide {

// The step cannot be had: ranks that did not come, a group that went back, a server that stops.
struct StepMissing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct StepPart {
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<float> grads;
  std::vector<TableId> hyper_tables;
  std::vector<Hyper> hyper;
  uint64_t clock = 0;
  bool unique = true;
};

class BspSteps {
 public:
  BspSteps(Store& store, uint32_t workers) : store_(store), workers_(workers) {}

  // Keeps the part; the one that completes a step applies it. A part that is there already, or of a step
  // applied already, is skipped. Returns the nanoseconds spent in the store. BadInput for a rank outside the
  // group.
  uint64_t add(uint64_t step, uint32_t rank, StepPart part);
  // Blocks until `step` is applied; StepMissing after `timeout_s`, naming the ranks that are missing.
  void wait(uint64_t step, double timeout_s);
  // The group went back: what is buffered is dropped, those who wait are told.
  void reset(uint64_t applied, uint32_t workers);
  void cancel(const std::string& why);  // for good: the server stops
  uint64_t applied() const;

 private:
  uint64_t apply_ready();  // with the lock held
  std::string missing(uint64_t step) const;

  // A rank can run ahead only on a server that none of its keys touch; this many steps of memory at most.
  static constexpr uint64_t kAhead = 64;

  Store& store_;
  mutable std::mutex mutex_;
  std::condition_variable moved_;
  uint32_t workers_;
  uint64_t applied_ = 0;
  uint64_t resets_ = 0;
  std::string stopped_;  // why nothing will be applied any more
  std::map<uint64_t, std::map<uint32_t, StepPart>> parts_;
};

}  // namespace springtide
