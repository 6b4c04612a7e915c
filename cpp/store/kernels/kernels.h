// Optimizer steps on one row, in float32. The kernels are built once per instruction set (kernels_*.cpp), with the same
// order of operations and without fused multiply-add. Results therefore do not depend on the machine. Tests compare the
// kernels with reference.py.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace springtide {

// Bias corrections of Adam at step t, in double precision as in torch.
struct Bias {
  double one_minus_beta1_t;
  double sqrt_one_minus_beta2_t;
};

// Arguments that are equal for all rows of a table in one push.
struct StepArgs : OptimSpec {
  float lr = 0, decay = 0;
  float undamped = 1;                          // 1 - dampening
  float rest1 = 0, rest2 = 0, rest_alpha = 0;  // 1 - beta1, 1 - beta2, 1 - alpha
  // bias[t] for t <= bias_steps; later corrections are computed when needed
  const Bias* bias = nullptr;
  uint32_t bias_steps = 0;
  bool fixed_step = false;  // true if all rows are at the step for which `fixed` was computed
  Bias fixed{};
};

// The optimizer state of a row is `vectors`, each as long as the row, and at most one `number`.
using Kernel = void (*)(const StepArgs&, float* weights, float* vectors, float* number, const float* grad,
                        uint32_t dim);

struct Kernels {
  Kernel sgd, sgd_momentum, sgd_dampened, adagrad, rowwise_adagrad, adam, rmsprop, ftrl;
};

// Returns the kernels for rows of this length. Common lengths have specialized loops.
Kernels kernels_portable(uint32_t dim);
Kernels kernels_avx2(uint32_t dim);
Kernels kernels_avx512(uint32_t dim);
Kernels best_kernels(uint32_t dim);  // returns the best kernels for this machine

Bias bias_at(const StepArgs& args, uint64_t step);  // optimizer.cpp

}  // namespace springtide
