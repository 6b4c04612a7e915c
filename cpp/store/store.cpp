#include "store/store.h"

#include <pthread.h>

#include <bit>
#include <cmath>

#include "base/hash.h"

namespace springtide {

namespace {

// Increased in every forked child. A child does not inherit table memory (arena.h), so a store refuses to work in a
// child.
std::atomic<uint64_t> process_generation{1};

uint64_t this_process() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++process_generation; });
  static_cast<void>(registered);
  return process_generation.load(std::memory_order_relaxed);
}

const StoreOptions& checked(const StoreOptions& options) {
  throw_if<BadInput>(options.slots < kStripes || options.slots > 65536 || !std::has_single_bit(options.slots),
                     "slots must be a power of two from 64 to 65536, got ", options.slots);
  throw_if<BadInput>(options.threads < 1 || options.threads > 256, "threads must be 1 to 256, got ", options.threads);
  return options;
}

size_t reserve(const StoreOptions& options) {
  return options.reserve_bytes != 0 ? options.reserve_bytes : 2 * machine_memory();
}

[[noreturn]] void refuse(const TableSpec& spec, const std::string& why) {
  throw BadInput("table ", spec.id, " ('", spec.name, "'): ", why);
}

void check_numbers(const TableSpec& spec) {
  const OptimSpec& o = spec.optim;
  for (float x : {spec.init.a, spec.init.b, o.momentum, o.dampening, o.beta1, o.beta2, o.eps, o.alpha, o.ftrl_beta,
                  o.l1, o.l2, o.initial_accumulator}) {
    if (!std::isfinite(x)) refuse(spec, "every number of its init and optimizer must be finite");
  }
  if (o.beta1 < 0 || o.beta1 >= 1 || o.beta2 < 0 || o.beta2 >= 1) refuse(spec, "betas must be in [0, 1)");
  if (o.eps < 0 || o.l1 < 0 || o.l2 < 0 || o.initial_accumulator < 0) {
    refuse(spec, "eps, l1, l2 and initial_accumulator must not be negative");
  }
  if (o.nesterov && (o.momentum <= 0 || o.dampening != 0)) {
    refuse(spec, "nesterov needs a momentum and no dampening");
  }
  if (spec.init.kind == InitKind::xavier && spec.init.b < 0) refuse(spec, "xavier's row count must not be negative");
}

void check_spec(const TableSpec& spec) {
  if (!is_plain(spec.id)) refuse(spec, "table ids go from 0 to 16383");
  if (spec.dim == 0 || spec.dim > (1u << 24)) {
    refuse(spec, "dim must be 1 to 16777216, got " + std::to_string(spec.dim));
  }
  if (static_cast<int>(spec.dtype) > 2) refuse(spec, "unknown dtype");
  if (static_cast<int>(spec.init.kind) > 3) refuse(spec, "unknown init");
  if (static_cast<int>(spec.optim.kind) > 5) refuse(spec, "unknown optimizer");
  if (spec.min_count > kMaxCount) {
    refuse(spec, "min_count must be at most " + std::to_string(kMaxCount) + ", got " + std::to_string(spec.min_count));
  }
  check_numbers(spec);
}

// Returns the first field in which two specs differ.
std::string difference(const TableSpec& a, const TableSpec& b) {
  auto differ = [](const char* field, const auto& x, const auto& y) {
    return std::string(field) + " was " + std::to_string(x) + ", now " + std::to_string(y);
  };
  if (a.name != b.name) return "name was '" + a.name + "', now '" + b.name + "'";
  if (a.dim != b.dim) return differ("dim", a.dim, b.dim);
  if (a.dtype != b.dtype) return differ("dtype", static_cast<int>(a.dtype), static_cast<int>(b.dtype));
  if (!(a.init == b.init)) return "init differs";
  if (a.optim.kind != b.optim.kind) {
    return std::string("optimizer was ") + name_of(a.optim.kind) + ", now " + name_of(b.optim.kind);
  }
  if (!(a.optim == b.optim)) return "optimizer settings differ";
  if (a.min_count != b.min_count) return differ("min_count", a.min_count, b.min_count);
  if (a.ttl != b.ttl) return differ("ttl", a.ttl, b.ttl);
  return differ("capacity_rows", a.capacity_rows, b.capacity_rows);
}

}  // namespace

Store::Store(const StoreOptions& wanted)
    : options(checked(wanted)),
      slot_shift_(64 - static_cast<uint32_t>(std::countr_zero(options.slots))),
      extents_(reserve(options)),
      index_(options.slots, reserve(options), extents_.tables()),
      histories_(options.slots),
      closed_(options.slots, 0),
      tables_(new std::atomic<Table*>[kTables]()),
      pool_(options.threads),
      process_(this_process()) {
  for (Stripe& stripe : stripes_) stripe.identities = SlotIdentities(slots_a_stripe());
}

void Store::declare(const TableSpec& spec) {
  check_process();
  check_spec(spec);
  std::lock_guard hold(declare_lock_);
  if (Table* known = find_table(spec.id)) {
    if (known->spec == spec) return;
    refuse(spec, "declared before with another spec: " + difference(known->spec, spec));
  }
  owned_.push_back(std::make_unique<Table>(spec, options.slots, options.seed, extents_));
  clock.refine(spec.ttl, spec.capacity_rows != 0);
  if (spec.ttl != 0) any_ttl_ = true;
  tables_[spec.id].store(owned_.back().get(), std::memory_order_release);
}

Table& Store::table(TableId id) const {
  if (Table* known = find_table(id)) return *known;
  throw BadInput("table ", id, " was never declared to this store");
}

void Store::check_slot(uint32_t slot) const {
  check_process();
  if (slot < options.slots) return;
  throw BadInput("slot ", slot, " is not one of 0 to ", options.slots - 1);
}

void Store::check_process() const {
  if (process_ == this_process()) return;
  throw BadInput(
      "a store cannot be used in a forked child; create the store in the child, or start the process with spawn");
}

void Store::for_stripes(size_t keys, const std::function<void(uint32_t)>& work) {
  if (worth_sharing(keys)) return pool_.run(kStripes, work);
  for (uint32_t s = 0; s < kStripes; ++s) work(s);
}

uint64_t Store::row_floats(std::span<const TableId> ids) const {
  uint64_t floats = 0;
  for (const TableId id : ids) {
    const Table& known = table(is_image(id) || is_count(id) ? table_of(id) : id);
    floats += is_count(id) ? 1 : is_image(id) ? known.image_floats() : known.dim;
  }
  return floats;
}

uint64_t Store::cut() {
  check_process();
  return clock.cut();
}

uint64_t Store::rows() const {
  const std::lock_guard hold(declare_lock_);
  uint64_t sum = 0;
  for (const auto& owned : owned_) sum += static_cast<uint64_t>(owned->count.load());
  return sum;
}

std::vector<TableSpec> Store::tables() const {
  const std::lock_guard hold(declare_lock_);
  std::vector<TableSpec> specs;
  for (const auto& owned : owned_) specs.push_back(owned->spec);
  std::ranges::sort(specs, {}, &TableSpec::id);
  return specs;
}

}  // namespace springtide
