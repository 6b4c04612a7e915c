#include "base/hash.h"

namespace springtide {

// The mapping is part of every stored model: if these change, tables written by older versions are
// unreadable.
static_assert(hash_key(0, 0) == 0xe220a8397b1dcdafULL);
static_assert(key_of(7, hash_key(7, -123456789)) == -123456789);
static_assert(slot_of(~0ULL, 1024) == 1023);

}  // namespace springtide
