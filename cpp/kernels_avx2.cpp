// The kernels of kernels.inl, built for processors with AVX2.
#include "kernels.h"

namespace springtide {

namespace {
#include "kernels.inl"
}

Kernels kernels_avx2(uint32_t dim) { return set_for(dim); }

}  // namespace springtide
