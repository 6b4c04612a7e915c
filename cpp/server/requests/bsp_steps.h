// Bulk-synchronous steps on one server. Parts of a step are buffered until every rank's has arrived; then the
// step is complete. It is applied on request, once it is complete on all servers, with gradients summed in
// rank order. A step that is complete on some servers only, because a rank was lost, can therefore be dropped
// by all.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "store/store.h"

namespace springtide {

// The step cannot be had: ranks that did not come, a group that went back, a server that stops.
struct StepMissing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct StepRowsIn {
  std::vector<TableId> tables;
  std::vector<Key> keys;
  std::vector<float> floats;
};

struct StepPart {
  StepRowsIn grads;
  StepRowsIn images;  // of rows that a worker has trained itself: laid down after the sums
  std::vector<TableId> hyper_tables;
  std::vector<Hyper> hyper;
  uint64_t clock = 0;
  bool unique = true;
};

class BspSteps {
 public:
  BspSteps(Store& store, uint32_t workers) : store_(store), workers_(workers) {}

  // Keeps the part. One that is there already, or of a step applied already, is skipped; one of a group that
  // is over is not taken (false), however long before that its frame was looked at. Ranks are those of the
  // job: a group may lack some of them. BadInput for one rank more than the group has.
  bool add(uint64_t step, uint32_t rank, uint32_t generation, StepPart part);
  // Whether every rank's part of `step` comes within `timeout_s`; false also when the group is formed anew.
  bool await_complete(uint64_t step, double timeout_s);
  // Applies all steps up to this one; the caller knows that they are complete on every server. Returns the
  // nanoseconds spent in the store. StepMissing when they are not complete even here.
  uint64_t apply(uint64_t step);
  // The last step up to which all are complete here.
  uint64_t complete() const;
  // The group is formed anew: steps up to `step` are applied, later parts dropped. `at_rest`: all ranks are
  // after that step, so one that is not complete here was before this server had any slots. StepMissing when
  // more is applied here.
  uint64_t settle(uint64_t step, uint32_t workers, uint32_t generation, bool at_rest = false);
  // Blocks until `step` is complete and applies it; StepMissing after `timeout_s`, naming the ranks that are
  // missing.
  void wait(uint64_t step, double timeout_s);
  // The group goes back: nothing is applied, what is buffered is dropped, those who wait are told. After
  // which step it goes on, `settle` says.
  void reset(uint32_t workers, uint32_t generation);
  void cancel(const std::string& why);  // for good: the server stops
  uint64_t applied() const;
  // A step failed in the middle. Slots that have a part of it must not be served, here or elsewhere, until
  // the group has gone back to a checkpoint.
  bool half_applied() const;

 private:
  // These with the lock held.
  bool is_complete(uint64_t step) const;
  uint64_t apply_up_to(uint64_t step);
  std::string missing(uint64_t step) const;

  // A rank can run ahead only on a server that none of its keys touch; this many steps of memory at most.
  static constexpr uint64_t kAhead = 64;

  Store& store_;
  mutable std::mutex mutex_;
  std::condition_variable moved_;
  uint32_t workers_;
  uint32_t generation_ = 0;  // of the group that these steps are of
  uint64_t applied_ = 0;
  uint64_t resets_ = 0;
  std::string stopped_;  // why nothing will be applied any more
  bool half_applied_ = false;
  std::map<uint64_t, std::map<uint32_t, StepPart>> parts_;
};

}  // namespace springtide
