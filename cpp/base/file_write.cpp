#include "base/file_write.h"

#include <unistd.h>

#include <cerrno>

namespace springtide {

int write_at(int file, uint64_t offset, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    ssize_t wrote = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    if (wrote == 0) return ENOSPC;
    bytes = bytes.subspan(static_cast<size_t>(wrote));
    offset += static_cast<uint64_t>(wrote);
  }
  return 0;
}

}  // namespace springtide
