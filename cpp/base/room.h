// Room in a vector for what will be added later, by code that must not fail. In: how many. Next:
// store_once.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace springtide {

// Grows by doubling, so that asking for a little again and again costs no more than adding it.
template <class T>
void make_room(std::vector<T>& into, size_t more) {
  const size_t wanted = into.size() + more;
  if (wanted > into.capacity()) into.reserve(std::max(wanted, into.capacity() * 2));
}

}  // namespace springtide
