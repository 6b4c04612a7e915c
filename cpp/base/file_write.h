// Writing a run of bytes into a file at its place, all of it or not at all as far as the caller is concerned.
// In: an open file and bytes. Out: 0, or the errno of what went wrong. Next: bindings/store.cpp.
#pragma once

#include <cstdint>
#include <span>

namespace springtide {

int write_at(int file, uint64_t offset, std::span<const uint8_t> bytes);

}  // namespace springtide
