// Types shared by the whole core: keys, tables, optimizers, hyperparameters of a push, errors.
// Next: store/store.h (tables in memory), step/backend.h (tables anywhere).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

// Statistics are declared as a list of names. Macros turn the list into struct fields and Python dicts.
#define SPRINGTIDE_FIGURE(name) uint64_t name = 0;

namespace springtide {

using Key = int64_t;       // 64 bits everywhere; every value is a legal key
using TableId = uint16_t;  // dense tensors are in tables too, one table per parameter group
// Flag of a table id in a request: asks for the row's image instead of its weights. An image is everything that a store
// keeps for a row, as float32: weights, optimizer vectors, optimizer number. Workers that cache rows need images
// (cached_backend.h).
constexpr TableId kImage = 0x8000;
// Flag of a table id in a request: asks for the row's update count, 32 bits in place of one float (row_counts.h).
constexpr TableId kCount = 0x4000;
constexpr TableId kTables = 0x4000;  // table ids are below this number
constexpr bool is_image(TableId table) { return (table & (kImage | kCount)) == kImage; }
constexpr bool is_count(TableId table) { return (table & (kImage | kCount)) == kCount; }
constexpr bool is_plain(TableId table) { return table < kTables; }
constexpr TableId table_of(TableId table) { return static_cast<TableId>(table & (kTables - 1)); }
constexpr uint32_t kStripes = 64;  // lock stripes of a store; the slots of one stripe are adjacent

enum class DType : uint8_t { f32 = 0, f16 = 1, bf16 = 2 };
enum class InitKind : uint8_t { zeros = 0, uniform = 1, normal = 2, xavier = 3 };
enum class OptimKind : uint8_t { sgd = 0, adagrad = 1, rowwise_adagrad = 2, adam = 3, rmsprop = 4, ftrl = 5 };

// The value of a missing row, a function of (seed, table, key).
struct InitSpec {
  InitKind kind = InitKind::zeros;
  float a = 0;  // uniform: low;  normal: mean; xavier: gain
  float b = 0;  // uniform: high; normal: std; xavier: row count in place of fan-out
  bool operator==(const InitSpec&) const = default;
};

// Options of an optimizer that stay constant during the life of a table. TableHyper has the values that a learning-rate
// scheduler may change.
struct OptimSpec {
  OptimKind kind = OptimKind::sgd;
  float momentum = 0, dampening = 0;   // sgd
  bool nesterov = false;               // sgd
  float beta1 = 0.9f, beta2 = 0.999f;  // adam
  // adam: if true, eps is added as in torch.optim.Adam; if false, as in SparseAdam
  bool eps_outside = true;
  bool decoupled_decay = false;         // adam: if true, the optimizer is AdamW
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
  DType dtype = DType::f32;  // data type of the weights; optimizer state is always float32
  InitSpec init;
  OptimSpec optim;
  // number of gradients before a key gets a row; with 0 or 1, the first gradient creates the row
  uint32_t min_count = 0;
  uint64_t ttl = 0;            // evict a row that is unused for longer than this, by the push clock; 0: never
  uint64_t capacity_rows = 0;  // limit for the whole job, divided among slots; 0: none
  bool operator==(const TableSpec&) const = default;
};

// Hyperparameters of one table, sent with each push in this memory layout.
struct TableHyper {
  TableId table = 0;
  uint16_t reserved = 0;
  float lr = 0;
  float weight_decay = 0;
  uint32_t reserved2 = 0;
  uint64_t step = 0;  // step count for adam's bias correction; 0 means that the row counts its own steps
};
static_assert(sizeof(TableHyper) == 24);

// Identity of trained batches: samples of a shard (with a number that is unique in the job), or offsets of a stream's
// partition.
struct BatchRange {
  uint32_t shard_samples = 0;  // size of the whole shard, to merge adjacent finished shards; 0: unknown
  uint32_t shard = 0;          // number of the shard, or of the stream's partition
  uint64_t first = 0;
  uint64_t count = 0;
};

// A text of strings and numbers.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (add(parts), ...);
  return text;
}

// An error that Python receives as the class of springtide.errors with this name. The parts of its message, strings and
// numbers, are passed by value. Otherwise the counter of a loop that may throw could not stay in a register.
struct Error : std::runtime_error {
  template <class... Parts>
  explicit Error(Parts... parts) : std::runtime_error(concat(parts...)) {}
  virtual const char* python_class() const = 0;
};
#define SPRINGTIDE_ERROR(Name, Base, python)                     \
  struct Name : Base {                                           \
    using Base::Base;                                            \
    const char* python_class() const override { return python; } \
  }
SPRINGTIDE_ERROR(BadInput, Error, "BadInput");               // invalid argument
SPRINGTIDE_ERROR(NonFinite, BadInput, "NonFiniteGradient");  // a push with NaN or infinity; nothing was applied
SPRINGTIDE_ERROR(PartlyApplied, Error, "PartlyApplied");     // a slot has a part of the push's batches already
SPRINGTIDE_ERROR(PeerLost, Error, "ServerUnreachable");      // unreachable, gone, or against the protocol
SPRINGTIDE_ERROR(GroupChanged, PeerLost, "GroupChanged");    // the bsp group was re-formed, unknown to the sender
SPRINGTIDE_ERROR(HandshakeRefused, PeerLost, "ServerUnreachable");  // by the peer, or by us: a retry would not help
SPRINGTIDE_ERROR(WrongOwner, Error, "WrongOwner");                  // a slot that the addressed server does not own
SPRINGTIDE_ERROR(PortTaken, Error, "PortTaken");                    // another process listens on this address

template <class Thrown, class... Parts>
[[gnu::always_inline]] inline void throw_if(bool wrong, const Parts&... parts) {
  if (wrong) [[unlikely]]
    throw Thrown(parts...);
}

// Base of classes that are neither copied nor moved.
struct NoCopy {
  NoCopy() = default;
  NoCopy(const NoCopy&) = delete;
  NoCopy& operator=(const NoCopy&) = delete;
};

}  // namespace springtide
