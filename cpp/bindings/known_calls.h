// Copies of tensors that known calls read (TensorConstant), compared bit by bit with the tensors of user code.
// Next: known_calls.cpp.
#pragma once

#include <cstring>

#include "bindings/bindings.h"

namespace springtide {

inline bool truth(PyObject* owned) {
  if (owned == nullptr) throw nb::python_error();
  const int is_true = PyObject_IsTrue(owned);
  Py_DECREF(owned);
  if (is_true < 0) throw nb::python_error();
  return is_true != 0;
}

inline bool equal(PyObject* left, PyObject* right) {
  const int same = PyObject_RichCompareBool(left, right, Py_EQ);
  if (same < 0) throw nb::python_error();
  return same != 0;
}

inline nb::object attribute(PyObject* of, PyObject* name) {
  nb::object found = nb::steal(PyObject_GetAttr(of, name));
  if (!found.is_valid()) throw nb::python_error();
  return found;
}

inline bool truth(const nb::object& of) { return of.ptr() == Py_True || truth(of.inc_ref().ptr()); }

// Names of attributes, interned once.
struct Names {
  Names() {
    for (const auto& [place, name] :
         std::initializer_list<std::pair<PyObject**, const char*>>{{&dtype, "dtype"},
                                                                   {&shape, "shape"},
                                                                   {&layout, "layout"},
                                                                   {&requires_grad, "requires_grad"},
                                                                   {&is_cpu, "is_cpu"},
                                                                   {&is_contiguous, "is_contiguous"},
                                                                   {&is_neg, "is_neg"},
                                                                   {&is_conj, "is_conj"},
                                                                   {&data_ptr, "data_ptr"},
                                                                   {&version, "_version"},
                                                                   {&changed, "changed"}}) {
      *place = PyUnicode_InternFromString(name);
    }
  }
  PyObject *dtype, *shape, *layout, *requires_grad, *is_cpu, *is_contiguous, *is_neg, *is_conj, *data_ptr, *version,
      *changed;
};

inline const Names& names() {
  static const Names known;
  return known;
}

// A copy of a tensor that the moved part reads.
class TensorConstant {
 public:
  explicit TensorConstant(nb::object value)
      : value_(std::move(value)),
        dtype_(value_.attr("dtype")),
        shape_(value_.attr("shape")),
        strided_(nb::module_::import_("torch").attr("strided")),
        bytes_(nb::cast<size_t>(value_.attr("numel")()) * nb::cast<size_t>(value_.attr("element_size")())),
        address_(nb::cast<uintptr_t>(value_.attr("data_ptr")())),
        odd_(nb::cast<bool>(value_.attr("is_floating_point")()) || nb::cast<bool>(value_.attr("is_complex")())) {}

  const nb::object& value() const { return value_; }

  // Returns true if the tensor has these bits and requires no gradient.
  bool is_still(nb::handle given) const {
    const Names& n = names();
    PyObject* tensor = given.ptr();
    const auto is = [tensor](PyObject* name) { return truth(attribute(tensor, name)); };
    const auto gives = [tensor](PyObject* method) { return truth(PyObject_CallMethodNoArgs(tensor, method)); };
    if (!attribute(tensor, n.dtype).is(dtype_) || is(n.requires_grad) || !attribute(tensor, n.layout).is(strided_) ||
        !is(n.is_cpu) || !equal(attribute(tensor, n.shape).ptr(), shape_.ptr()) || !gives(n.is_contiguous)) {
      return false;
    }
    if (odd_ && (gives(n.is_neg) || gives(n.is_conj))) return false;
    const nb::object address = nb::steal(PyObject_CallMethodNoArgs(tensor, n.data_ptr));
    if (!address.is_valid()) throw nb::python_error();
    const auto* bits = reinterpret_cast<const void*>(nb::cast<uintptr_t>(address));
    return bytes_ == 0 || std::memcmp(bits, reinterpret_cast<const void*>(address_), bytes_) == 0;
  }

 private:
  nb::object value_, dtype_, shape_, strided_;
  size_t bytes_;
  uintptr_t address_;
  bool odd_;  // true if tensors of this dtype may have a conjugate or negative bit, and so differ from their memory
};

}  // namespace springtide
