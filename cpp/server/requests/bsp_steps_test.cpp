// Tests steps of a group that was re-formed: parts of the previous group are no longer accepted.
#include "server/requests/bsp_steps.h"

#include "testing/check.h"

namespace springtide::bsp_steps_test {

TEST(a_part_of_a_group_that_is_over_is_not_taken_though_its_frame_came_before) {
  Store store{StoreOptions{}};
  BspSteps steps(store, 5);
  CHECK(steps.add(1, 4, 1, {}));
  steps.settle(0, 2, 2);
  CHECK(!steps.add(1, 4, 1, {}));
  CHECK(!steps.add(1, 0, 1, {}));  // otherwise, the late part would replace the part of the new rank
  CHECK(steps.add(1, 0, 2, {}));
  CHECK(steps.complete() == 0);
  CHECK(steps.add(1, 1, 2, {}));
  CHECK(steps.complete() == 1);
}

TEST(a_group_that_went_back_takes_nothing_of_the_time_before) {
  Store store{StoreOptions{}};
  BspSteps steps(store, 1);
  CHECK(steps.add(1, 0, 3, {}));
  steps.apply(1);
  steps.reset(1, 4);
  CHECK(!steps.add(1, 0, 3, {}));
  CHECK(steps.complete() == 0);
}

TEST(a_server_without_steps_joins_a_group_at_rest_and_one_that_is_ahead_of_it_refuses) {
  Store store{StoreOptions{}};
  BspSteps steps(store, 1);
  steps.settle(26, 1, 1, true);
  CHECK(steps.applied() == 26);
  steps.settle(26, 1, 2, true);  // the group lost its leader meanwhile
  CHECK(steps.applied() == 26);
  CHECK(checks::throws<StepMissing>([&] { steps.settle(25, 1, 3, true); }));
}

TEST(a_group_may_have_any_ranks_and_no_more_of_them_than_workers) {
  Store store{StoreOptions{}};
  BspSteps steps(store, 3);
  for (const uint32_t rank : {5, 0, 2}) CHECK(steps.add(1, rank, 1, {}));
  CHECK(steps.complete() == 1);
  CHECK(checks::throws<BadInput>([&] { steps.add(1, 1, 1, {}); }));
}

}  // namespace springtide::bsp_steps_test
