// float16 and bfloat16 storage: widened on reading, rounded to nearest even on writing.
// In and out: spans of one row. Portable; half.cpp picks the processor's conversions where it has them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace springtide {

void widen(DType dtype, const void* from, float* to, size_t count);
void narrow(DType dtype, const float* from, void* to, size_t count);
uint32_t bytes_of(DType dtype);

}  // namespace springtide
