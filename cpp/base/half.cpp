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

float f16_to_float(uint16_t h) {
  uint32_t sign = uint32_t{h & 0x8000u} << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0;  // NaN stays NaN, made quiet as processors do
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | mantissa << 13);
  }
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  float small = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -small : small;
}

uint16_t float_to_f16(float f) {
  auto bits = std::bit_cast<uint32_t>(f);
  auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (rest >> 13 & 0x3ffu));  // NaN
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);                         // rounds to infinity
  if (rest < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded mantissa in the last bits
    float aligned = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u));
  }
  rest += 0xc8000fffu + (rest >> 13 & 1u);  // exponent bias 127 -> 15, half a unit, ties to even
  return static_cast<uint16_t>(sign | rest >> 13);
}

uint16_t float_to_bf16(float f) {
  auto bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Converts eight halves at a time with the CPU's own instruction. Returns how many were converted; 0 without such an
// instruction.
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
