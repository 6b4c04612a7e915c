// The kernels of kernels.inl, built for processors with AVX2.
#include "store/kernels/kernels.h"

namespace springtide {

namespace {
#include "store/kernels/kernels.inl"
}

Kernels kernels_avx2(uint32_t dim) { return set_for(dim); }

}  // namespace springtide
