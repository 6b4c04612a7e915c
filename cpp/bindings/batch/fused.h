// Pieces as Python tells them: (offset, address, size) of each, or as they were laid out natively. Used by
// fused.cpp, tensors.cpp and secure.cpp.
#pragma once

#include <vector>

#include "batch/fused_pieces.h"
#include "bindings/bindings.h"

struct Pieces {
  std::vector<springtide::Piece> all;
};

std::vector<springtide::Piece> read_pieces(nb::handle told, uint64_t capacity);  // BadInput unless they fit
