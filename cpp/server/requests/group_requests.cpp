// Requests of a bsp group: wait for a step, apply it, regroup. A part of RequestHandler.
// Steps: bsp_steps.h. Protocol: docs/design/training.md.
#include <algorithm>

#include "net/frame_io.h"
#include "server/requests/request_handler.h"

namespace springtide {

bool RequestHandler::step(const FrameHeader& header) {
  FrameHeader answer = reply_to(header);
  // Whatever the frame says, no longer than a pull would wait: longer times do not fit a clock.
  const double wait_s = std::min(static_cast<double>(header.clock) / 1000, state_.options.step_wait_s);
  if ((header.flags & kBsp) != 0) {
    answer.server_ns = state_.steps.apply(header.step);
    state_.count.update_ns += answer.server_ns;
  } else if (!state_.steps.await_complete(header.step, wait_s)) {
    return fail(
        header, Status::step_missing,
        "step " + std::to_string(header.step) + " is not complete on server " + std::to_string(state_.options.index));
  }
  return reply(answer, {});
}

bool RequestHandler::regroup(const FrameHeader& header) {
  FrameHeader answer = reply_to(header);
  if ((header.flags & kBsp) != 0) {
    if (header.keys == 0) throw BadInput("workers is 0; a group needs at least 1");
    const bool at_rest = (header.flags & kAtRest) != 0;
    state_.count.update_ns += state_.steps.settle(header.step, header.keys, header.generation, at_rest);
  } else {
    state_.raise_generation(header.generation);
    answer.step = state_.steps.complete();
  }
  return reply(answer, {});
}

}  // namespace springtide
