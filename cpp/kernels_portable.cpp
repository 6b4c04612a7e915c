// The kernels of kernels.inl, built for any processor.
#include "kernels.h"

namespace springtide {

namespace {
#include "kernels.inl"
}

Kernels kernels_portable(uint32_t dim) { return set_for(dim); }

}  // namespace springtide
