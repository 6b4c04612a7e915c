// A table's optimizer: size and initial value of a row's state, and the kernel arguments for the hyperparameters of a
// push. In: OptimSpec, TableHyper. Out: StepArgs and a kernel for each row (kernels.h).
#pragma once

#include <vector>

#include "base/types.h"
#include "store/kernels/kernels.h"

namespace springtide {

class Optimizer {
 public:
  Optimizer(const OptimSpec& spec, uint32_t dim, const std::string& table);

  uint32_t vector_floats() const { return vector_floats_; }
  bool has_number() const { return has_number_; }
  uint32_t state_floats() const { return vector_floats_ + (has_number_ ? 1 : 0); }
  void reset(float* vectors, float* number) const;  // initial state of a new row
  StepArgs prepare(const TableHyper& hyper) const;  // BadInput for an invalid learning rate
  Kernel kernel() const { return kernel_; }

 private:
  OptimSpec spec_;
  uint32_t dim_;
  std::string table_;
  uint32_t vector_floats_ = 0;
  bool has_number_ = false;
  Kernel kernel_ = nullptr;
  std::vector<Bias> bias_;
};

const char* name_of(OptimKind kind);

}  // namespace springtide
