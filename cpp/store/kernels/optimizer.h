// A table's optimizer: how much state a row has, how it starts, and what the hyperparameters of a push make of it.
// In: OptimSpec, TableHyper. Out: StepArgs and a kernel for each row (kernels.h).
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
  void reset(float* vectors, float* number) const;  // of a new row
  StepArgs prepare(const TableHyper& hyper) const;  // BadInput on a rate that cannot be used
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
