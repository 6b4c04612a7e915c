// One entry of the index: hash of the key, location of the row, and stamp of the last change. 16 bytes, four per cache
// line.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace springtide {

// The hash replaces the key, because hash_key is a bijection for a given table.
//   meta: | stamp 24 | candidate 1 | extent 24, row 15         |  an existing row
//         | stamp 24 |     1       | table 16, count 23        |  a key that waits for admission
// A meta of 0 marks an empty cell, because extent 0 belongs to no table.
struct Cell {
  uint64_t hash;
  uint64_t meta;
};
static_assert(sizeof(Cell) == 16);

constexpr uint32_t kStampBits = 24;
constexpr uint32_t kMaxStamp = (1u << kStampBits) - 1;
constexpr uint32_t kRowBits = 15;
constexpr uint32_t kExtentBits = 24;
constexpr uint32_t kMaxRowsPerExtent = 1u << kRowBits;
constexpr uint32_t kMaxCount = (1u << 23) - 1;
constexpr uint64_t kCandidateBit = uint64_t{1} << 39;
constexpr uint64_t kHandleMask = kCandidateBit - 1;
constexpr TableId kNoTable = 0xffff;  // not a valid table id

// Location of a row: the number of the extent, and the number of the row in it.
using RowHandle = uint64_t;

constexpr uint64_t row_meta(RowHandle row, uint32_t stamp) { return (uint64_t{stamp} << 40) | row; }
constexpr uint64_t candidate_meta(TableId table, uint32_t count, uint32_t stamp) {
  return (uint64_t{stamp} << 40) | kCandidateBit | (uint64_t{table} << 23) | count;
}
constexpr bool is_candidate(uint64_t meta) { return (meta & kCandidateBit) != 0; }
constexpr uint32_t stamp_of(uint64_t meta) { return static_cast<uint32_t>(meta >> 40); }
constexpr RowHandle handle_of(uint64_t meta) { return meta & kHandleMask; }
constexpr uint32_t extent_of(RowHandle row) { return static_cast<uint32_t>((row & kHandleMask) >> kRowBits); }
constexpr uint32_t row_of(RowHandle row) { return static_cast<uint32_t>(row & (kMaxRowsPerExtent - 1)); }
constexpr TableId candidate_table(uint64_t meta) { return static_cast<TableId>((meta >> 23) & 0xffff); }
constexpr uint32_t candidate_count(uint64_t meta) { return static_cast<uint32_t>(meta & kMaxCount); }

}  // namespace springtide
