// References of watched objects: entries of dicts and classes, attributes, cells, items of lists. Compares them with
// the references that were there at the start.
//
// The trainer checks dozens of objects for every batch, after a backward pass has emptied the caches. So the comparison
// reads pointers only, and touches none of the objects that they lead to.
#include <algorithm>
#include <utility>
#include <vector>

#include "bindings/bindings.h"

using namespace nb::literals;

namespace {

// What a holder refers to. Borrows all objects, which the Python code that made it keeps.
class WatchedReferences {
 public:
  // missing: stands for the value of a name that does not exist. part: items of a list to compare at once.
  WatchedReferences(nb::handle missing, Py_ssize_t part) : missing_(missing.ptr()), part_(part) {}

  // Watches names of a holder: a dict, class or cell, or an object with attributes. `were` has the values by name.
  // sized: new entries of a dict count too.
  void add_names(nb::handle holder, const nb::dict& were, bool sized) {
    Watch watch{holder.ptr()};
    watch.kind = PyDict_CheckExact(watch.holder) ? Kind::dict
                 : PyDict_Check(watch.holder)    ? Kind::other
                 : PyType_Check(watch.holder)    ? Kind::type
                 : PyCell_Check(watch.holder)    ? Kind::cell
                                                 : Kind::object;
    for (const auto& [name, was] : were) watch.names.emplace_back(name.ptr(), was.ptr());
    if (sized && watch.kind == Kind::dict) watch.size = PyDict_GET_SIZE(watch.holder);
    watches_.push_back(std::move(watch));
  }

  // Watches the items of a list. `were` is a list of them, which nobody changes.
  void add_items(const nb::list& held, const nb::list& were) {
    Watch watch{held.ptr()};
    watch.kind = Kind::list;
    watch.were = were.ptr();
    watches_.push_back(std::move(watch));
  }

  // Takes the number of a check that compares something else.
  void add_other() { watches_.push_back({}); }

  // Returns the numbers, from `begin` up to `end`, of watches whose references have changed, and of other checks.
  nb::list suspects(size_t begin, size_t end) {
    nb::list found;
    for (size_t at = begin; at < std::min(end, watches_.size()); ++at) {
      if (!is_same(watches_[at])) found.append(at);
    }
    return found;
  }

 private:
  enum class Kind : uint8_t { other, dict, type, cell, object, list };
  struct Watch {
    PyObject* holder = nullptr;
    Kind kind = Kind::other;
    std::vector<std::pair<PyObject*, PyObject*>> names;  // with the value of each
    Py_ssize_t size = -1;
    PyObject* were = nullptr;  // items of a list
    Py_ssize_t next = 0;       // first item of the next part
  };

  bool is_same(Watch& watch) const {
    switch (watch.kind) {
      case Kind::other:
        return false;
      case Kind::dict:
        return (watch.size < 0 || PyDict_GET_SIZE(watch.holder) == watch.size) && has(watch, watch.holder);
      case Kind::type:
        return has(watch, reinterpret_cast<PyTypeObject*>(watch.holder)->tp_dict);
      case Kind::cell:
        return is(PyCell_GET(watch.holder), watch.names.front().second);
      case Kind::object:
        return std::all_of(watch.names.begin(), watch.names.end(), [this, &watch](const auto& name) {
          const nb::object now = nb::steal(PyObject_GetAttr(watch.holder, name.first));
          if (!now.is_valid() && !PyErr_ExceptionMatches(PyExc_AttributeError)) throw nb::python_error();
          PyErr_Clear();
          return is(now.ptr(), name.second);
        });
      case Kind::list:
        return has_items(watch);
    }
    return false;
  }

  bool is(PyObject* now, PyObject* was) const { return (now == nullptr ? missing_ : now) == was; }

  bool has(const Watch& watch, PyObject* dict) const {
    return std::all_of(watch.names.begin(), watch.names.end(), [this, dict](const auto& name) {
      PyObject* const now = PyDict_GetItemWithError(dict, name.first);
      if (now == nullptr && PyErr_Occurred()) throw nb::python_error();
      return is(now, name.second);
    });
  }

  // Compares one part of the items; the next call compares the next part.
  bool has_items(Watch& watch) const {
    const Py_ssize_t count = PyList_GET_SIZE(watch.were), begin = watch.next, end = std::min(begin + part_, count);
    if (PyList_GET_SIZE(watch.holder) != count) return false;
    PyObject* const* const now = reinterpret_cast<PyListObject*>(watch.holder)->ob_item;
    PyObject* const* const was = reinterpret_cast<PyListObject*>(watch.were)->ob_item;
    watch.next = end < count ? end : 0;
    return std::equal(now + begin, now + end, was + begin);
  }

  PyObject* missing_;
  Py_ssize_t part_;
  std::vector<Watch> watches_;
};

}  // namespace

void bind_references(nb::module_& m) {
  nb::class_<WatchedReferences>(m, "WatchedReferences",
                                "References of objects that can change. Keeps none of the objects alive.")
      .def(nb::init<nb::handle, Py_ssize_t>(), "missing"_a, "part"_a,
           "missing: value of a name that does not exist. part: items of a list to compare at once.")
      .def("add_names", &WatchedReferences::add_names, "holder"_a, "were"_a, "sized"_a,
           "Watch names of a dict, class, cell or object. sized: also watch for new entries of the dict.")
      .def("add_items", &WatchedReferences::add_items, "held"_a, "were"_a, "Watch the items of a list.")
      .def("add_other", &WatchedReferences::add_other, "Number a check of something that is no reference.")
      .def("suspects", &WatchedReferences::suspects, "begin"_a, "end"_a,
           "Numbers of watches, in this range, whose references have changed, and of other checks.");
}
