// 16-bit storage: converting eight numbers together gives the same results as converting them one by one, and each
// result is the nearest value.
#include "base/half.h"

#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "testing/check.h"

namespace springtide::half_test {

namespace {

constexpr DType kBoth[] = {DType::f16, DType::bf16};

// Converts one number per call, and never uses the conversion of eight numbers.
std::vector<float> widened_singly(DType dtype, const std::vector<uint16_t>& from) {
  std::vector<float> to(from.size());
  for (size_t i = 0; i < from.size(); ++i) widen(dtype, &from[i], &to[i], 1);
  return to;
}

std::vector<uint16_t> narrowed_singly(DType dtype, const std::vector<float>& from) {
  std::vector<uint16_t> to(from.size());
  for (size_t i = 0; i < from.size(); ++i) narrow(dtype, &from[i], &to[i], 1);
  return to;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  }
  return a.size() == b.size();
}

std::vector<uint16_t> all_halves() {
  std::vector<uint16_t> all(65536);
  for (uint32_t h = 0; h < all.size(); ++h) all[h] = static_cast<uint16_t>(h);
  return all;
}

// Every half as a float, the midpoints between neighbours, and one float to either side of each.
std::vector<float> around_every_half(DType dtype) {
  std::vector<float> floats;
  for (const float value : widened_singly(dtype, all_halves())) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t unit = dtype == DType::f16 ? 1u << 13 : 1u << 16;
    for (const uint32_t off : {0u, 1u, unit / 2 - 1, unit / 2, unit / 2 + 1, unit - 1}) {
      floats.push_back(std::bit_cast<float>(bits + off));
    }
  }
  for (uint32_t payload = 1; payload < 1u << 23; payload = payload * 2 + 1) {  // NaN, quiet or not
    floats.push_back(std::bit_cast<float>(0x7f800000u | payload));
    floats.push_back(std::bit_cast<float>(0xff800000u | payload));
  }
  for (int exponent = -149; exponent < -20; ++exponent) {  // f16 has subnormals from 2^-14 to 2^-24
    for (const float times : {1.0f, 1.25f, 1.5f, 1.75f}) floats.push_back(std::ldexp(times, exponent));
  }
  // a number that is no multiple of eight, to test a remainder too
  while (floats.size() % 8 != 5) floats.push_back(-0.0f);
  return floats;
}

}  // namespace

TEST(eight_halves_are_widened_as_one_is) {
  for (const DType dtype : kBoth) {
    std::vector<uint16_t> halves = all_halves();
    halves.insert(halves.end(), {1, 2, 3});
    std::vector<float> floats(halves.size());
    widen(dtype, halves.data(), floats.data(), halves.size());
    CHECK(same_bits(floats, widened_singly(dtype, halves)));
  }
}

TEST(eight_floats_are_narrowed_as_one_is) {
  for (const DType dtype : kBoth) {
    const std::vector<float> floats = around_every_half(dtype);
    std::vector<uint16_t> halves(floats.size());
    narrow(dtype, floats.data(), halves.data(), floats.size());
    CHECK(halves == narrowed_singly(dtype, floats));
  }
}

TEST(every_half_survives_the_trip_and_nan_stays_nan) {
  for (const DType dtype : kBoth) {
    const std::vector<uint16_t> halves = all_halves();
    const std::vector<float> floats = widened_singly(dtype, halves);
    const std::vector<uint16_t> back = narrowed_singly(dtype, floats);
    bool same = true;
    for (size_t i = 0; i < halves.size(); ++i) {
      const bool nan = std::isnan(floats[i]);
      same = same && (nan ? std::isnan(widened_singly(dtype, {back[i]})[0]) : back[i] == halves[i]);
    }
    CHECK(same);
  }
}

// The nearest half by distance, computed in double; on a tie the half with an even mantissa.
TEST(a_float_becomes_the_nearest_half_and_the_even_one_on_a_tie) {
  for (const DType dtype : kBoth) {
    const std::vector<float> value = widened_singly(dtype, all_halves());
    const uint16_t infinity = dtype == DType::f16 ? 0x7c00 : 0x7f80;
    const double beyond = dtype == DType::f16 ? 0x1p16 : 0x1p128;  // value that stands for infinity when rounding
    auto place = [&](uint16_t h) { return h == infinity ? beyond : double{value[h]}; };
    bool nearest = true;
    for (const float f : around_every_half(dtype)) {
      if (!std::isfinite(f) || std::signbit(f)) continue;
      uint16_t got;
      narrow(dtype, &f, &got, 1);
      const double off = std::abs(place(got) - double{f});
      for (const int step : {-1, 1}) {
        if ((step < 0 && got == 0) || (step > 0 && got == infinity)) continue;
        const double other = std::abs(place(static_cast<uint16_t>(got + step)) - double{f});
        nearest = nearest && (off < other || (off == other && got % 2 == 0) || (got == infinity && f >= beyond));
      }
    }
    CHECK(nearest);
  }
}

}  // namespace springtide::half_test
