#include "base/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <bit>
#include <cstring>

namespace springtide {

namespace {

// The compiler's conversion rounds to nearest even. The conversion keeps NaN and makes it quiet, as processors do.
float f16_to_float(uint16_t h) { return static_cast<float>(std::bit_cast<_Float16>(h)); }
uint16_t float_to_f16(float f) { return std::bit_cast<uint16_t>(static_cast<_Float16>(f)); }

uint16_t float_to_bf16(float f) {
  auto bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Converts eight halves at a time with the CPU's own instruction. Returns the number of converted values; 0 without
// such an instruction.
#if defined(__x86_64__)
__attribute__((target("f16c,avx"))) size_t widen_eights(const uint16_t* from, float* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(h));
  }
  return i;
}

__attribute__((target("f16c,avx"))) size_t narrow_eights(const float* from, uint16_t* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), h);
  }
  return i;
}

bool converts_eights() {
  static const bool has = __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx");
  return has;
}
#elif defined(__aarch64__)
size_t widen_eights(const uint16_t* from, float* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(from + i));
    vst1q_f32(to + i, vcvt_f32_f16(vget_low_f16(h)));
    vst1q_f32(to + i + 4, vcvt_high_f32_f16(h));
  }
  return i;
}

size_t narrow_eights(const float* from, uint16_t* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    float16x4_t low = vcvt_f16_f32(vld1q_f32(from + i));
    vst1q_u16(to + i, vreinterpretq_u16_f16(vcvt_high_f16_f32(low, vld1q_f32(from + i + 4))));
  }
  return i;
}

bool converts_eights() { return true; }
#else
size_t widen_eights(const uint16_t*, float*, size_t) { return 0; }
size_t narrow_eights(const float*, uint16_t*, size_t) { return 0; }
bool converts_eights() { return false; }
#endif

}  // namespace

void widen(DType dtype, const void* from, float* to, size_t count) {
  auto half = static_cast<const uint16_t*>(from);
  if (dtype == DType::f32) {
    std::memcpy(to, from, count * sizeof(float));
  } else if (dtype == DType::bf16) {
    for (size_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(uint32_t{half[i]} << 16);
  } else {
    size_t i = converts_eights() ? widen_eights(half, to, count) : 0;
    for (; i < count; ++i) to[i] = f16_to_float(half[i]);
  }
}

void narrow(DType dtype, const float* from, void* to, size_t count) {
  auto half = static_cast<uint16_t*>(to);
  if (dtype == DType::f32) {
    std::memcpy(to, from, count * sizeof(float));
  } else if (dtype == DType::bf16) {
    for (size_t i = 0; i < count; ++i) half[i] = float_to_bf16(from[i]);
  } else {
    size_t i = converts_eights() ? narrow_eights(from, half, count) : 0;
    for (; i < count; ++i) half[i] = float_to_f16(from[i]);
  }
}

uint32_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

}  // namespace springtide
