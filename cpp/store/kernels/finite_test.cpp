// Non-finite floats are found at every position, and finite floats pass.
#include "store/kernels/finite.h"

#include <limits>
#include <vector>

#include "testing/check.h"

namespace springtide::finite_test {

TEST(what_is_not_finite_is_seen_wherever_it_lies) {
  using Limits = std::numeric_limits<float>;
  for (size_t count = 0; count <= 67; ++count) {
    std::vector<float> values(count, Limits::max());
    for (size_t i = 0; i < count; i += 2) values[i] = -Limits::denorm_min();
    CHECK(all_finite(values.data(), count));
    for (size_t place = 0; place < count; ++place) {
      const float before = values[place];
      for (const float odd : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), -Limits::quiet_NaN()}) {
        values[place] = odd;
        CHECK(!all_finite(values.data(), count));
      }
      values[place] = before;
    }
  }
}

}  // namespace springtide::finite_test
