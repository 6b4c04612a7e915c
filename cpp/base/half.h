// float16 and bfloat16 storage: widened on read, rounded to nearest even on write, one row at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace springtide {

void widen(DType dtype, const void* from, float* to, size_t count);
void narrow(DType dtype, const float* from, void* to, size_t count);
uint32_t bytes_of(DType dtype);

}  // namespace springtide
