// Shared by client.cpp and step.cpp: parts of a request and pending requests, as Python holds them.
#pragma once

#include <memory>
#include <vector>

#include "bindings/bindings.h"
#include "step/step_rows.h"

// A StepRows or a DenseRows in a list of parts.
struct PyPart {
  springtide::StepRows* step = nullptr;
  springtide::DenseRows* dense = nullptr;
  const std::shared_ptr<springtide::RowSet>& set() const { return step ? step->set() : dense->set(); }
  springtide::Part push_part() const { return step ? step->push_part() : dense->push_part(); }
};

// Keeps the memory of a push until the push is done, even if Python drops its references earlier.
struct PyPending {
  std::vector<std::shared_ptr<springtide::RowSet>> sets;
  std::unique_ptr<springtide::Pending> pending;

  PyPending() = default;
  PyPending(PyPending&&) = default;
  PyPending& operator=(PyPending&&) = default;
  ~PyPending();
  void wait();
};

void bind_step(nb::module_& m);

namespace nanobind::detail {

template <>
struct type_caster<PyPart> {
  NB_TYPE_CASTER(PyPart, const_name("StepRows | DenseRows"))
  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    value = {};
    return nb::try_cast(source, value.step) || nb::try_cast(source, value.dense);
  }
};

}  // namespace nanobind::detail
