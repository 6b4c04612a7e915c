// Writes bytes at an offset of a file, completely or with an errno. Used by bindings/store.cpp.
#pragma once

#include <cstdint>
#include <span>

namespace springtide {

int write_at(int file, uint64_t offset, std::span<const uint8_t> bytes);

}  // namespace springtide
