// The kernels of kernels.inl, built for processors with AVX-512.
#include "store/kernels/kernels.h"

namespace springtide {

namespace {
#include "store/kernels/kernels.inl"
}

Kernels kernels_avx512(uint32_t dim) { return set_for(dim); }

}  // namespace springtide
