// Pieces of a payload given by Python: (offset, address, size) each, or laid out natively.
#pragma once

#include <vector>

#include "batch/fused_pieces.h"
#include "bindings/bindings.h"

struct Pieces {
  std::vector<springtide::Piece> all;
};

std::vector<springtide::Piece> read_pieces(nb::handle told, uint64_t capacity);  // BadInput unless they fit
