#include "store/index/row_pool.h"

#include <algorithm>
#include <new>

#include "base/vector_reserve.h"

namespace springtide {

constexpr size_t align64(size_t bytes) { return (bytes + 63) / 64 * 64; }
constexpr size_t kKeptFree = 512;  // most free rows that a stripe keeps after evictions
constexpr uint64_t kMostAtOnce = 64;

ExtentArena::ExtentArena(size_t reserve_bytes)
    : arena_("rows", std::min(reserve_bytes, kExtentBytes << kExtentBits)),
      tables_arena_("row owners", arena_.capacity() / kExtentBytes * sizeof(TableId)),
      tables_(reinterpret_cast<TableId*>(tables_arena_.base())) {
  take(1, kNoTable);  // extent 0 belongs to no table, because empty cells refer to it
}

uint32_t ExtentArena::take(uint32_t extents, TableId table) {
  auto first = static_cast<uint32_t>(arena_.take(extents * kExtentBytes, kExtentBytes) / kExtentBytes);
  for (uint32_t i = 0; i < extents; ++i) tables_[first + i] = table;
  return first;
}

RowPool::RowPool(ExtentArena& arena, TableId table, uint32_t weight_bytes, uint32_t vector_bytes, uint32_t number_bytes)
    : arena_(arena),
      table_(table),
      weight_bytes_(weight_bytes),
      vector_bytes_(vector_bytes),
      stripes_(std::make_unique<std::array<Stripe, kStripes>>()) {
  size_t row = size_t{weight_bytes} + vector_bytes + number_bytes;
  double best = 2;
  uint32_t least = static_cast<uint32_t>((row + 128 + kExtentBytes - 1) / kExtentBytes);
  // use the smallest number of extents that wastes less than 1/64
  for (uint32_t extents = least; extents < least + 16; ++extents) {
    size_t bytes = extents * kExtentBytes;
    auto rows = static_cast<uint32_t>(std::min<size_t>((bytes - 126) / row, kMaxRowsPerExtent));
    double waste = 1.0 - static_cast<double>(rows * row) / static_cast<double>(bytes);
    if (waste < best) {
      best = waste;
      extents_ = extents;
      rows_ = rows;
    }
    if (best < 1.0 / 64 || rows == kMaxRowsPerExtent) break;
  }
  vectors_at_ = align64(size_t{rows_} * weight_bytes_);
  numbers_at_ = vectors_at_ + align64(size_t{rows_} * vector_bytes_);
  next_row_ = rows_;
}

void RowPool::expect(uint32_t number) {
  Stripe& stripe = (*stripes_)[number];
  if (stripe.free.size() <= stripe.expected) refill(stripe);
  ++stripe.expected;
}

void RowPool::expect_back(uint32_t number) {
  Stripe& stripe = (*stripes_)[number];
  reserve_more(stripe.free, ++stripe.expected_back);
}

RowHandle RowPool::take(uint32_t number) {
  Stripe& stripe = (*stripes_)[number];
  if (stripe.free.empty()) refill(stripe);
  RowHandle row = stripe.free.back();
  stripe.free.pop_back();
  ++stripe.taken;
  return row;
}

// Takes more rows if the stripe has more rows, so that small tables do not waste memory on unused rows.
void RowPool::refill(Stripe& stripe) {
  uint64_t wanted = std::clamp<uint64_t>(stripe.taken / 8, 1, kMostAtOnce);
  std::lock_guard hold(lock_);
  if (!free_.empty()) {
    size_t n = std::min<size_t>(wanted, free_.size());
    reserve_more(stripe.free, n);
    stripe.free.insert(stripe.free.end(), free_.end() - n, free_.end());
    free_.resize(free_.size() - n);
    return;
  }
  reserve_more(stripe.free, wanted);
  if (next_row_ == rows_) {
    extent_ = arena_.take(extents_, table_);
    next_row_ = 0;
  }
  auto n = static_cast<uint32_t>(std::min<uint64_t>(wanted, rows_ - next_row_));
  for (uint32_t i = n; i > 0; --i) {
    stripe.free.push_back(uint64_t{extent_} << kRowBits | (next_row_ + i - 1));
  }
  next_row_ += n;
}

void RowPool::give_back(uint32_t number, RowHandle row) {
  Stripe& stripe = (*stripes_)[number];
  stripe.free.push_back(row);
  --stripe.taken;
}

void RowPool::settle(uint32_t number) noexcept {
  Stripe& stripe = (*stripes_)[number];
  stripe.expected = stripe.expected_back = 0;
  if (stripe.free.size() < kKeptFree) return;
  std::lock_guard hold(lock_);
  try {
    std::vector<RowHandle> kept(stripe.free.begin(), stripe.free.begin() + kKeptFree / 2);
    free_.insert(free_.end(), stripe.free.begin() + kKeptFree / 2, stripe.free.end());
    stripe.free.swap(kept);          // `kept` has enough memory reserved
  } catch (const std::bad_alloc&) {  // there is no memory, so the rows stay in the stripe
  }
}

}  // namespace springtide
