#include "store/kernels/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace springtide {

namespace {

constexpr double kNoMoreBias = 1e-9;  // smaller corrections are below the precision of float32, so they count as 1
constexpr uint32_t kMostBiasSteps = 65536;

// Kernel of an optimizer, and the state that it keeps for a row.
struct State {
  Kernel Kernels::* kernel;
  uint32_t vectors;
  bool number;
};
constexpr std::array<State, 6> kState = {{{&Kernels::sgd, 0, false},
                                          {&Kernels::adagrad, 1, false},
                                          {&Kernels::rowwise_adagrad, 0, true},
                                          {&Kernels::adam, 2, true},
                                          {&Kernels::rmsprop, 1, false},
                                          {&Kernels::ftrl, 2, false}}};  // by OptimKind

Bias compute_bias(double beta1, double beta2, uint64_t step) {
  auto t = static_cast<double>(step);
  return {1.0 - std::pow(beta1, t), std::sqrt(1.0 - std::pow(beta2, t))};
}

}  // namespace

Kernels best_kernels(uint32_t dim) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return kernels_avx512(dim);
  }
  if (__builtin_cpu_supports("avx2")) return kernels_avx2(dim);
#endif
  return kernels_portable(dim);
}

Bias bias_at(const StepArgs& args, uint64_t step) { return compute_bias(args.beta1, args.beta2, step); }

Optimizer::Optimizer(const OptimSpec& spec, uint32_t dim, const std::string& table)
    : spec_(spec), dim_(dim), table_(table) {
  throw_if<BadInput>(static_cast<size_t>(spec.kind) >= kState.size(), "unknown optimizer kind ",
                     static_cast<int>(spec.kind));
  State state = kState[static_cast<size_t>(spec.kind)];
  if (spec.kind == OptimKind::sgd && spec.momentum != 0) {
    state = spec.dampening == 0 ? State{&Kernels::sgd_momentum, 1, false} : State{&Kernels::sgd_dampened, 1, true};
  }
  kernel_ = best_kernels(dim).*state.kernel;
  vector_floats_ = state.vectors * dim;
  has_number_ = state.number;
  if (spec.kind != OptimKind::adam) return;
  double slowest = std::max(spec.beta1, spec.beta2);
  double steps = slowest > 0 ? std::log(kNoMoreBias) / std::log(slowest) : 1;
  auto count = static_cast<uint32_t>(std::clamp(steps, 1.0, double{kMostBiasSteps}));
  for (uint32_t t = 0; t <= count; ++t) bias_.push_back(compute_bias(spec.beta1, spec.beta2, t));
}

void Optimizer::reset(float* vectors, float* number) const {
  float start = spec_.initial_accumulator;
  std::fill_n(vectors, vector_floats_, spec_.kind == OptimKind::adagrad ? start : 0.0f);
  if (spec_.kind == OptimKind::ftrl) std::fill_n(vectors + dim_, dim_, start);
  if (has_number_) *number = spec_.kind == OptimKind::rowwise_adagrad ? start : 0.0f;
}

StepArgs Optimizer::prepare(const TableHyper& hyper) const {
  throw_if<BadInput>(!std::isfinite(hyper.lr) || !std::isfinite(hyper.weight_decay), "push to table '", table_,
                     "': lr and weight_decay must be finite, got ", hyper.lr, " and ", hyper.weight_decay);
  throw_if<BadInput>(spec_.kind == OptimKind::ftrl && hyper.lr <= 0, "push to table '", table_,
                     "': ftrl divides by lr, which must be above 0, got ", hyper.lr);
  StepArgs args{spec_};
  args.lr = hyper.lr;
  args.decay = hyper.weight_decay;
  args.undamped = 1.0f - spec_.dampening;
  args.rest1 = static_cast<float>(1.0 - spec_.beta1);
  args.rest2 = static_cast<float>(1.0 - spec_.beta2);
  args.rest_alpha = static_cast<float>(1.0 - spec_.alpha);
  args.bias = bias_.data();
  args.bias_steps = bias_.empty() ? 0 : static_cast<uint32_t>(bias_.size()) - 1;
  args.fixed_step = hyper.step != 0;
  if (args.fixed_step) args.fixed = compute_bias(spec_.beta1, spec_.beta2, hyper.step);
  return args;
}

const char* name_of(OptimKind kind) {
  static constexpr const char* names[] = {"sgd", "adagrad", "rowwise_adagrad", "adam", "rmsprop", "ftrl"};
  return names[static_cast<int>(kind)];
}

}  // namespace springtide
