// The nouns every part of the core agrees on: keys, tables, optimizers, what rides on a push.
// No code here does work; next: store.h (tables in memory), backend.h (tables wherever they are).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace springtide {

using Key = int64_t;       // 64 bits end to end; every value is legal
using TableId = uint16_t;  // dense tensors live in tables too, one per parameter group
// In a request: not the row's weights but its image, all that a store keeps of it, as float32: weights, then
// the optimizer's vectors, then its number. A worker that trains a row itself needs them (cached_backend.h).
constexpr TableId kImage = 0x8000;
// Or how often it was trained, 32 bits in the place of one float (row_counts.h).
constexpr TableId kCount = 0x4000;
constexpr TableId kTables = 0x4000;  // ids of tables are below it
constexpr bool is_image(TableId table) { return (table & (kImage | kCount)) == kImage; }
constexpr bool is_count(TableId table) { return (table & (kImage | kCount)) == kCount; }
constexpr bool is_plain(TableId table) { return table < kTables; }
constexpr TableId table_of(TableId table) { return static_cast<TableId>(table & (kTables - 1)); }
constexpr uint32_t kStripes = 64;  // lock stripes of a store; the slots of one stripe are neighbours

enum class DType : uint8_t { f32 = 0, f16 = 1, bf16 = 2 };
enum class InitKind : uint8_t { zeros = 0, uniform = 1, normal = 2, xavier = 3 };
enum class OptimKind : uint8_t { sgd = 0, adagrad = 1, rowwise_adagrad = 2, adam = 3, rmsprop = 4, ftrl = 5 };

// A missing row reads as this, a hash of (seed, table, key): no row has to exist to be read.
struct InitSpec {
  InitKind kind = InitKind::zeros;
  float a = 0;  // uniform: low;  normal: mean; xavier: gain
  float b = 0;  // uniform: high; normal: std;  xavier: row count that stands for fan-out
  bool operator==(const InitSpec&) const = default;
};

// What never changes while a table lives. What a scheduler may change rides on the push (Hyper).
struct OptimSpec {
  OptimKind kind = OptimKind::sgd;
  float momentum = 0, dampening = 0;    // sgd
  bool nesterov = false;                // sgd
  float beta1 = 0.9f, beta2 = 0.999f;   // adam
  bool eps_outside = true;              // adam: true is torch.optim.Adam's place of eps, false SparseAdam's
  bool decoupled_decay = false;         // adam: true is AdamW
  float eps = 1e-8f;                    // adagrad, adam, rmsprop
  float alpha = 0.99f;                  // rmsprop
  float ftrl_beta = 1, l1 = 0, l2 = 0;  // ftrl
  float initial_accumulator = 0;        // adagrad, rowwise_adagrad, ftrl
  bool operator==(const OptimSpec&) const = default;
};

struct TableSpec {
  TableId id = 0;
  std::string name;
  uint32_t dim = 0;
  DType dtype = DType::f32;  // of the weights; optimizer state is always float32
  InitSpec init;
  OptimSpec optim;
  uint32_t min_count = 0;      // a row exists after that many applied gradients; 0 and 1: at once
  uint64_t ttl = 0;            // a row untouched for longer than this on the push clock is evicted; 0: never
  uint64_t capacity_rows = 0;  // job-wide bound, shared out over slots; 0: none
  bool operator==(const TableSpec&) const = default;
};

// Rides on each push, one per table it speaks for.
struct Hyper {
  float lr = 0;
  float weight_decay = 0;
  uint64_t step = 0;  // adam's bias correction uses this count when it is not 0, else the row's own
};

// Identity of trained batches: samples of a shard, or offsets of a stream's partition. The number of a shard
// is unique in the job, over epochs and data sets.
struct BatchRange {
  uint32_t shard_samples = 0;  // of the whole shard: finished neighbours become one range. 0: not known
  uint32_t shard = 0;          // or the stream's partition
  uint64_t first = 0;
  uint64_t count = 0;
};

// A mistake of the caller: reaches Python as springtide.errors.BadInput.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// A push with NaN or infinity in it: nothing of it was applied. springtide.errors.NonFiniteGradient.
struct NonFinite : BadInput {
  using BadInput::BadInput;
};
// A push whose batches a slot has applied in part: gradients cannot be split, so nothing of it was applied
// there. springtide.errors.PartlyApplied.
struct PartlyApplied : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// A peer that cannot be reached, went away or spoke nonsense. springtide.errors.ServerUnreachable.
struct PeerLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The bsp group was formed anew without this frame's sender knowing. springtide.errors.GroupChanged.
struct GroupChanged : PeerLost {
  using PeerLost::PeerLost;
};
// A slot that the addressed server does not own. springtide.errors.WrongOwner.
struct WrongOwner : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace springtide
