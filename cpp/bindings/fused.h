// Pieces as Python tells them: (offset, address, size) of each. Used by fused.cpp and secure.cpp.
#pragma once

#include <vector>

#include "bindings.h"
#include "fused_pieces.h"

std::vector<springtide::Piece> read_pieces(nb::list told, uint64_t capacity);  // BadInput unless they fit
