// Table specs as bytes, the body of a declare frame. Decoding checks every length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"

namespace springtide {

constexpr size_t kMaxTableName = 4096;

std::vector<uint8_t> encode_tables(std::span<const TableSpec> tables);
std::vector<TableSpec> decode_tables(std::span<const uint8_t> bytes);  // BadInput when they are anything else

}  // namespace springtide
