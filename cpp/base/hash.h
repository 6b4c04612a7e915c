// Key hashing. Slot, stripe and initial value of a row are functions of one hash, the same on every machine.
#pragma once

#include <bit>
#include <cstdint>

#include "base/types.h"

namespace springtide {

// The finalizer of splitmix64: every input bit reaches every output bit.
constexpr uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A row and its image (kImage) have the same hash, and so the same slot.
constexpr uint64_t hash_key(TableId table, Key key) {
  return mix64(static_cast<uint64_t>(key) + 0x9e3779b97f4a7c15ULL * (static_cast<uint64_t>(table_of(table)) + 1));
}

// Inverse of mix64. For a given table, hash_key is a bijection, so key_of computes the key from the hash.
constexpr uint64_t unmix64(uint64_t x) {
  x ^= (x >> 31) ^ (x >> 62);
  x *= 0x319642b2d24d8ec3ULL;
  x ^= (x >> 27) ^ (x >> 54);
  x *= 0x96de1b173f119089ULL;
  return x ^ (x >> 30) ^ (x >> 60);
}

constexpr Key key_of(TableId table, uint64_t hash) {
  return static_cast<Key>(unmix64(hash) - 0x9e3779b97f4a7c15ULL * (static_cast<uint64_t>(table) + 1));
}

// The slot is the top bits of the hash, so the slots of a stripe are adjacent. `slots` is a power of two, and at least
// 64.
constexpr uint32_t slot_of(uint64_t hash, uint32_t slots) {
  return static_cast<uint32_t>(hash >> (64 - std::countr_zero(slots)));
}

constexpr uint32_t stripe_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 58); }

// The mapping is part of every stored model: if these functions change, tables written by older versions are
// unreadable.
static_assert(hash_key(0, 0) == 0xe220a8397b1dcdafULL);
static_assert(key_of(7, hash_key(7, -123456789)) == -123456789);
static_assert(slot_of(~0ULL, 1024) == 1023);

}  // namespace springtide
