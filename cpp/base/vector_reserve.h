// Reserves vector capacity ahead of code that must not fail (store_once.cpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace springtide {

// Doubles the capacity when it grows, so that many small calls cost no more than adding the elements.
template <class T>
void reserve_more(std::vector<T>& into, size_t more) {
  const size_t wanted = into.size() + more;
  if (wanted > into.capacity()) into.reserve(std::max(wanted, into.capacity() * 2));
}

}  // namespace springtide
