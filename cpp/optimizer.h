// A table's optimizer: how much state a row has, how it starts, and what a push's Hyper makes of it.
// In: OptimSpec, Hyper. Out: StepArgs and a kernel for each row (kernels.h).
#pragma once

#include <vector>

#include "kernels.h"
#include "types.h"

namespace springtide {

class Optimizer {
 public:
  Optimizer(const OptimSpec& spec, uint32_t dim, const std::string& table);

  uint32_t state_floats() const { return state_floats_; }
  void reset(float* state) const;              // of a new row
  StepArgs prepare(const Hyper& hyper) const;  // BadInput on a rate that cannot be used
  Kernel kernel() const { return kernel_; }

 private:
  OptimSpec spec_;
  uint32_t dim_;
  std::string table_;
  uint32_t state_floats_ = 0;
  Kernel kernel_ = nullptr;
  std::vector<Bias> bias_;
};

const char* name_of(OptimKind kind);

}  // namespace springtide
