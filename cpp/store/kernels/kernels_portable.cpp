// The kernels of kernels.inl, built for any processor.
#include "store/kernels/kernels.h"

namespace springtide {

namespace {
#include "store/kernels/kernels.inl"
}

Kernels kernels_portable(uint32_t dim) { return set_for(dim); }

}  // namespace springtide
