// Each kernels_*.cpp includes this file inside its own namespace; see kernels.h. D is the row length; 0 means any
// length. This file must not use the standard library. The linker could use its inline functions, which are compiled
// here for AVX, in other files.

template <uint32_t D>
void sgd(const StepArgs& a, float* __restrict w, float*, float*, const float* __restrict grad, uint32_t dim) {
  const uint32_t n = D ? D : dim;
  for (uint32_t i = 0; i < n; ++i) w[i] -= a.lr * (grad[i] + a.decay * w[i]);
}

inline void momentum_rows(const StepArgs& a, float* __restrict w, float* __restrict buf, const float* __restrict grad,
                          uint32_t n, float keep, float take) {
  if (a.nesterov) {
    for (uint32_t i = 0; i < n; ++i) {
      float g = grad[i] + a.decay * w[i];
      float b = keep * buf[i] + take * g;
      buf[i] = b;
      w[i] -= a.lr * (g + a.momentum * b);
    }
  } else {
    for (uint32_t i = 0; i < n; ++i) {
      float b = keep * buf[i] + take * (grad[i] + a.decay * w[i]);
      buf[i] = b;
      w[i] -= a.lr * b;
    }
  }
}

template <uint32_t D>
void sgd_momentum(const StepArgs& a, float* w, float* buffer, float*, const float* grad, uint32_t dim) {
  momentum_rows(a, w, buffer, grad, D ? D : dim, a.momentum, 1.0f);
}

// torch does not dampen the first gradient, so a row records whether it has had a gradient.
template <uint32_t D>
void sgd_dampened(const StepArgs& a, float* w, float* buffer, float* started, const float* grad, uint32_t dim) {
  bool first = *started == 0.0f;
  *started = 1.0f;
  momentum_rows(a, w, buffer, grad, D ? D : dim, first ? 0.0f : a.momentum, first ? 1.0f : a.undamped);
}

template <uint32_t D>
void adagrad(const StepArgs& a, float* __restrict w, float* __restrict sum, float*, const float* __restrict grad,
             uint32_t dim) {
  const uint32_t n = D ? D : dim;
  for (uint32_t i = 0; i < n; ++i) {
    float g = grad[i] + a.decay * w[i];
    float s = sum[i] + g * g;
    sum[i] = s;
    w[i] -= a.lr * (g / (__builtin_sqrtf(s) + a.eps));
  }
}

// Adds sixteen partial sums in pairs. The steps are unrolled by hand, because a loop over the sums would go through
// memory.
inline float folded(float (&part)[16]) {
  for (uint32_t j = 0; j < 8; ++j) part[j] += part[j + 8];
  for (uint32_t j = 0; j < 4; ++j) part[j] += part[j + 4];
  return (part[0] + part[2]) + (part[1] + part[3]);
}

// Uses one sum per row: the mean of the squared gradient. Partial sums are added in a fixed order that vector and
// scalar code can both follow.
template <uint32_t D>
void rowwise_adagrad(const StepArgs& a, float* __restrict w, float*, float* __restrict sum,
                     const float* __restrict grad, uint32_t dim) {
  const uint32_t n = D ? D : dim;
  float part[16] = {};
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (uint32_t j = 0; j < 16; ++j) {
      float g = grad[i + j] + a.decay * w[i + j];
      part[j] += g * g;
    }
  }
  for (uint32_t j = 0; i + j < n; ++j) {
    float g = grad[i + j] + a.decay * w[i + j];
    part[j] += g * g;
  }
  float s = *sum + folded(part) / static_cast<float>(n);
  *sum = s;
  float rate = a.lr / (__builtin_sqrtf(s) + a.eps);
  for (uint32_t k = 0; k < n; ++k) w[k] -= rate * (grad[k] + a.decay * w[k]);
}

inline void adam_row(const StepArgs& a, float* __restrict w, float* __restrict m, float* __restrict v,
                     const float* __restrict grad, uint32_t n, float size, float scale) {
  float shrink = a.decoupled_decay ? 1.0f - a.lr * a.decay : 1.0f;
  float decay = a.decoupled_decay ? 0.0f : a.decay;
  for (uint32_t i = 0; i < n; ++i) {
    float x = w[i] * shrink;
    float g = grad[i] + decay * x;
    float mi = m[i] + a.rest1 * (g - m[i]);
    float vi = a.beta2 * v[i] + a.rest2 * (g * g);
    m[i] = mi;
    v[i] = vi;
    w[i] = x - size * (mi / (__builtin_sqrtf(vi) * scale + a.eps));
  }
}

// The row's number is its step count, which is an integer stored in the bytes of a float. The vectors are the two
// moments.
template <uint32_t D>
void adam(const StepArgs& a, float* w, float* moments, float* steps, const float* grad, uint32_t dim) {
  const uint32_t n = D ? D : dim;
  uint32_t count;
  __builtin_memcpy(&count, steps, sizeof count);
  count += count != 0xffffffffu;
  __builtin_memcpy(steps, &count, sizeof count);
  Bias bias = a.fixed_step ? a.fixed : count <= a.bias_steps ? a.bias[count] : bias_at(a, count);
  double outside = double{a.lr} / bias.one_minus_beta1_t;
  if (a.eps_outside) {
    adam_row(a, w, moments, moments + n, grad, n, static_cast<float>(outside),
             static_cast<float>(1.0 / bias.sqrt_one_minus_beta2_t));
  } else {
    adam_row(a, w, moments, moments + n, grad, n, static_cast<float>(outside * bias.sqrt_one_minus_beta2_t), 1.0f);
  }
}

template <uint32_t D>
void rmsprop(const StepArgs& a, float* __restrict w, float* __restrict average, float*, const float* __restrict grad,
             uint32_t dim) {
  const uint32_t n = D ? D : dim;
  for (uint32_t i = 0; i < n; ++i) {
    float g = grad[i] + a.decay * w[i];
    float s = a.alpha * average[i] + a.rest_alpha * (g * g);
    average[i] = s;
    w[i] -= a.lr * (g / (__builtin_sqrtf(s) + a.eps));
  }
}

// FTRL-proximal (McMahan et al.) with z and n per coordinate; lr is its alpha.
template <uint32_t D>
void ftrl(const StepArgs& a, float* __restrict w, float* __restrict z_and_n, float*, const float* __restrict grad,
          uint32_t dim) {
  const uint32_t n = D ? D : dim;
  float* __restrict z = z_and_n;
  float* __restrict sum = z_and_n + n;
  for (uint32_t i = 0; i < n; ++i) {
    float g = grad[i] + a.decay * w[i];
    float before = __builtin_sqrtf(sum[i]);
    sum[i] += g * g;
    float after = __builtin_sqrtf(sum[i]);
    float zi = z[i] + (g - ((after - before) / a.lr) * w[i]);
    z[i] = zi;
    float size = __builtin_fabsf(zi);
    float shrunk = -__builtin_copysignf(size - a.l1, zi) / ((a.ftrl_beta + after) / a.lr + a.l2);
    w[i] = size <= a.l1 ? 0.0f : shrunk;
  }
}

template <uint32_t D>
Kernels set() {
  return {sgd<D>, sgd_momentum<D>, sgd_dampened<D>, adagrad<D>, rowwise_adagrad<D>, adam<D>, rmsprop<D>, ftrl<D>};
}

inline Kernels set_for(uint32_t dim) {
  switch (dim) {
    case 8:
      return set<8>();
    case 16:
      return set<16>();
    case 32:
      return set<32>();
    case 64:
      return set<64>();
    case 128:
      return set<128>();
    default:
      return set<0>();
  }
}
