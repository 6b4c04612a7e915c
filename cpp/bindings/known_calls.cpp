// Known torch calls of a split forward(): compare each call of user code with the recorded ones, and answer it.
//
// A forward makes dozens of known calls for every batch, each after a backward pass has emptied the caches. So the
// comparison reads a few compact templates, and runs no Python code for the usual call.
#include <cstring>
#include <deque>

#include "bindings/bindings.h"

using namespace nb::literals;
using namespace springtide;

namespace {

// Kinds of templates, in the order of KINDS in springtide/dataworker/split/program/known_calls.py.
enum class Kind : uint8_t { slot, input, free, constant, same, equal, number, times, test, slice, tuple, list, dict };
constexpr size_t kKinds = 13;

// A template of an argument.
struct Template {
  Kind kind;
  Py_ssize_t number = 0;  // a slot, or a factor of the batch size
  nb::object value;
  std::vector<Template> parts;
};

Template read_template(nb::handle told) {
  const auto fields = nb::cast<nb::tuple>(told);
  const auto kind = nb::cast<size_t>(fields[0]);
  if (kind >= kKinds) throw BadInput("a template of an unknown kind");
  Template made{static_cast<Kind>(kind), nb::cast<Py_ssize_t>(fields[1]), nb::object(fields[2]), {}};
  for (nb::handle part : nb::cast<nb::tuple>(fields[3])) made.parts.push_back(read_template(part));
  return made;
}

struct Call {
  nb::object function;
  std::vector<Template> args;
  std::vector<std::pair<nb::object, Template>> kwargs;
  Py_ssize_t answer;  // slot of the promise that answers the call; -1 if Python code answers it
  bool anytime;       // true if forward() may make the call at any time
};

bool truth(PyObject* owned) {
  if (owned == nullptr) throw nb::python_error();
  const int is_true = PyObject_IsTrue(owned);
  Py_DECREF(owned);
  if (is_true < 0) throw nb::python_error();
  return is_true != 0;
}

bool equal(PyObject* left, PyObject* right) {
  const int same = PyObject_RichCompareBool(left, right, Py_EQ);
  if (same < 0) throw nb::python_error();
  return same != 0;
}

// Slots of promises that something else holds or has given attributes, or of all if C++ holders are not counted.
// `uses` counts the holders of a tensor in C++, and `attributes` is the number of attributes of a new promise.
nb::list held_promises(nb::list promises, nb::object uses, Py_ssize_t attributes) {
  const Py_ssize_t count = PyList_GET_SIZE(promises.ptr());
  std::vector<bool> held(count, uses.is_none());
  const auto mark = [&](auto&& is_held) {
    for (Py_ssize_t slot = 0; slot < count; ++slot) {
      PyObject* promise = PyList_GET_ITEM(promises.ptr(), slot);
      if (promise != Py_None && !held[slot]) held[slot] = is_held(promise);
    }
  };
  // Each loop reads other memory, which is not in the caches. A short loop waits for many reads at once.
  mark([](PyObject* promise) { return Py_REFCNT(promise) != 1; });
  mark([attributes](PyObject* promise) {
    const nb::object own = nb::steal(PyObject_GenericGetDict(promise, nullptr));
    if (!own.is_valid()) throw nb::python_error();
    return PyDict_GET_SIZE(own.ptr()) != attributes;
  });
  mark([&uses](PyObject* promise) { return nb::cast<Py_ssize_t>(uses(nb::handle(promise))) != 1; });
  nb::list slots;
  for (Py_ssize_t slot = 0; slot < count; ++slot) {
    if (held[slot] && PyList_GET_ITEM(promises.ptr(), slot) != Py_None) slots.append(slot);
  }
  return slots;
}

thread_local int forwards_here = 0;  // forwards that run in this thread, of all splits

// All known calls of a split. A forward runs between `begin` and `end`; forwards may nest.
class KnownCalls {
 public:
  // calls: (function, templates of arguments, (name, template) of keyword arguments, answer, anytime) of each.
  // kinds: torch.Tensor, then all types of constant tensors. surroundings: (function, expected result) of each.
  // outside: runs a call that no forward makes.
  KnownCalls(nb::list calls, nb::tuple kinds, nb::list surroundings, nb::object outside)
      : kinds_(std::move(kinds)), outside_(std::move(outside)) {
    for (nb::handle told : calls) {
      const auto fields = nb::cast<nb::tuple>(told);
      Call call{nb::object(fields[0]), {}, {}, nb::cast<Py_ssize_t>(fields[3]), nb::cast<bool>(fields[4])};
      for (nb::handle spec : nb::cast<nb::tuple>(fields[1])) call.args.push_back(read_template(spec));
      for (nb::handle named : nb::cast<nb::tuple>(fields[2])) {
        call.kwargs.emplace_back(nb::object(named[0]), read_template(named[1]));
      }
      calls_.push_back(std::move(call));
    }
    for (nb::handle told : surroundings) surroundings_.emplace_back(nb::object(told[0]), nb::object(told[1]));
  }

  void begin(nb::object replay, nb::list values, nb::list promises, nb::dict free, nb::object size, bool answers) {
    forwards_.push_back({std::move(replay), std::move(values), std::move(promises), std::move(free), std::move(size),
                         std::vector<bool>(calls_.size()), 0, PyThread_get_thread_ident(), answers});
    ++forwards_here;
    advance(0);
  }

  void end() {
    if (forwards_.empty()) return;
    const Forward gone = std::move(forwards_.back());  // its objects go last: they may run Python code
    forwards_.pop_back();
    --forwards_here;
  }

  nb::object running() const { return forwards_.empty() ? nb::none() : forwards_.back().replay; }

  bool is_done(size_t at) { return now().done.at(at); }

  void mark_done(size_t at) {
    now().done.at(at) = true;
    if (at == now().expected) advance(at + 1);
  }

  bool matches(size_t at, nb::handle args, nb::handle kwargs) {
    const Call& call = calls_.at(at);
    const bool named = !kwargs.is_none();
    if (!PyTuple_Check(args.ptr()) || PyTuple_GET_SIZE(args.ptr()) != std::ssize(call.args)) return false;
    if (named && !PyDict_Check(kwargs.ptr())) return false;
    if ((named ? PyDict_GET_SIZE(kwargs.ptr()) : 0) != std::ssize(call.kwargs)) return false;
    for (size_t place = 0; place < call.args.size(); ++place) {
      if (!fits(call.args[place], PyTuple_GET_ITEM(args.ptr(), place))) return false;
    }
    for (const auto& [name, spec] : call.kwargs) {
      if (!holds(kwargs.ptr(), name.ptr(), spec)) return false;
    }
    return true;
  }

  bool argument_matches(size_t at, size_t place, nb::handle given) {
    return fits(calls_.at(at).args.at(place), given.ptr());
  }

  // Returns false if torch would compute the call otherwise than when it was recorded (autocast, dispatch modes).
  bool surroundings_fit() const {
    for (const auto& [function, expected] : surroundings_) {
      const nb::object found = function();
      if (!found.is(expected) && !equal(found.ptr(), expected.ptr())) return false;
    }
    return true;
  }

  // Handles a torch call that takes a promise.
  nb::object call(nb::handle func, nb::handle types, nb::handle args, nb::handle kwargs) {
    if (forwards_.empty() || now().thread != PyThread_get_thread_ident()) return outside_(func, args, kwargs);
    const size_t at = now().expected;
    if (now().answers && at < calls_.size() && calls_[at].answer >= 0 && equal(func.ptr(), calls_[at].function.ptr()) &&
        matches(at, args, kwargs) && surroundings_fit()) {
      const Py_ssize_t slot = calls_[at].answer;
      nb::object promise = nb::borrow(now().promises[slot]);
      now().values[slot] = promise;
      mark_done(at);
      return promise;
    }
    return now().replay.attr("call")(func, args, kwargs);
  }

 private:
  struct Forward {
    nb::object replay;  // the ForwardReplay
    nb::list values, promises;
    nb::dict free;
    nb::object size;
    std::vector<bool> done;
    size_t expected;  // the first call in recorded order that the forward has not made
    unsigned long thread;
    bool answers;  // false if each call is computed and compared
  };

  Forward& now() {
    if (forwards_.empty()) throw BadInput("known calls: no forward runs");
    return forwards_.back();
  }

  void advance(size_t at) {
    Forward& forward = now();
    while (at < calls_.size() && (forward.done[at] || calls_[at].anytime)) ++at;
    forward.expected = at;
  }

  bool is_kind(PyObject* given) const {
    for (nb::handle kind : kinds_) {
      if (reinterpret_cast<PyObject*>(Py_TYPE(given)) == kind.ptr()) return true;
    }
    return false;
  }

  bool all_fit(const Template& spec, PyObject* const* given) {
    for (size_t place = 0; place < spec.parts.size(); ++place) {
      if (!fits(spec.parts[place], given[place])) return false;
    }
    return true;
  }

  bool holds(PyObject* dict, PyObject* key, const Template& spec) {
    const nb::object given = nb::borrow(PyDict_GetItemWithError(dict, key));
    if (PyErr_Occurred()) throw nb::python_error();
    return given.is_valid() && fits(spec, given.ptr());
  }

  bool fits(const Template& spec, PyObject* given) {
    Forward& forward = now();
    switch (spec.kind) {
      case Kind::slot:
      case Kind::input: {
        PyObject* values = forward.values.ptr();
        if (spec.number >= PyList_GET_SIZE(values) || PyList_GET_ITEM(values, spec.number) != given) return false;
        return spec.kind == Kind::slot || nb::cast<bool>(forward.replay.attr("is_unwritten")(spec.number));
      }
      case Kind::free:
        return reinterpret_cast<PyObject*>(Py_TYPE(given)) == kinds_[0].ptr() &&
               nb::cast<bool>(forward.free[spec.value].attr("is_still")(nb::handle(given)));
      case Kind::constant:
        return is_kind(given) && nb::cast<bool>(spec.value.attr("is_still")(nb::handle(given)));
      case Kind::same:
        return given == spec.value.ptr();
      case Kind::equal:
        return Py_TYPE(given) == Py_TYPE(spec.value.ptr()) && equal(given, spec.value.ptr());
      case Kind::number: {
        if (!PyFloat_CheckExact(given)) return false;
        const double left = PyFloat_AS_DOUBLE(given), right = PyFloat_AS_DOUBLE(spec.value.ptr());
        return std::memcmp(&left, &right, sizeof(double)) == 0;
      }
      case Kind::times: {
        if (!PyLong_CheckExact(given)) return false;
        const nb::object wanted = forward.size * nb::int_(spec.number);
        return equal(given, wanted.ptr());
      }
      case Kind::test:
        return truth(PyObject_CallOneArg(spec.value.ptr(), given));
      case Kind::slice: {
        if (!PySlice_Check(given)) return false;
        const auto* slice = reinterpret_cast<const PySliceObject*>(given);
        PyObject* const parts[] = {slice->start, slice->stop, slice->step};
        return all_fit(spec, parts);
      }
      case Kind::tuple:  // value: torch.Size, which counts as a tuple
        if (!PyTuple_CheckExact(given) && reinterpret_cast<PyObject*>(Py_TYPE(given)) != spec.value.ptr()) return false;
        return PyTuple_GET_SIZE(given) == std::ssize(spec.parts) &&
               all_fit(spec, reinterpret_cast<PyTupleObject*>(given)->ob_item);
      case Kind::list: {
        if (!PyList_CheckExact(given) || PyList_GET_SIZE(given) != std::ssize(spec.parts)) return false;
        const nb::object copy = nb::steal(PyList_AsTuple(given));  // comparing may run Python code
        if (!copy.is_valid()) throw nb::python_error();
        return all_fit(spec, reinterpret_cast<PyTupleObject*>(copy.ptr())->ob_item);
      }
      case Kind::dict: {  // value: the keys in order
        if (!PyDict_CheckExact(given)) return false;
        const nb::object keys = nb::steal(PySequence_Tuple(given));
        if (!keys.is_valid()) throw nb::python_error();
        if (!equal(keys.ptr(), spec.value.ptr())) return false;
        for (size_t place = 0; place < spec.parts.size(); ++place) {
          if (!holds(given, spec.value[place].ptr(), spec.parts[place])) return false;
        }
        return true;
      }
    }
    return false;
  }

  std::vector<Call> calls_;
  nb::tuple kinds_;
  std::vector<std::pair<nb::object, nb::object>> surroundings_;
  nb::object outside_;
  std::deque<Forward> forwards_;  // a deque, because comparing an argument may begin another forward
};

PyObject* handle_call(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count < 2 || count > 4) {
    PyErr_SetString(PyExc_TypeError, "__torch_function__: wanted a function, types, arguments, keyword arguments");
    return nullptr;
  }
  try {
    const nb::object none = nb::steal(PyTuple_New(0));
    return nb::inst_ptr<KnownCalls>(self)
        ->call(args[0], args[1], count > 2 ? nb::handle(args[2]) : nb::handle(none),
               count > 3 ? nb::handle(args[3]) : nb::handle(Py_None))
        .release()
        .ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// A plain C function, because torch asks it for `__self__`, which other callables answer with an AttributeError.
PyMethodDef handler{"__torch_function__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&handle_call)),
                    METH_FASTCALL, "Handle a torch call that takes a promise."};

}  // namespace

void bind_known_calls(nb::module_& m) {
  m.def("held_promises", &held_promises, "promises"_a, "uses"_a.none(), "attributes"_a,
        "Slots of promises that something besides this list holds, or that have more attributes.");
  nb::class_<KnownCalls>(m, "KnownCalls", "The known torch calls of a split forward().")
      .def(nb::init<nb::list, nb::tuple, nb::list, nb::object>(), "calls"_a, "kinds"_a, "surroundings"_a, "outside"_a,
           "calls: (function, templates, (name, template) of keyword arguments, answer, anytime) of each.")
      .def("begin", &KnownCalls::begin, "replay"_a, "values"_a, "promises"_a, "free"_a, "size"_a, "answers"_a,
           "Begin a forward in this thread. answers: answer calls without Python code.")
      .def("end", &KnownCalls::end, "End the forward.")
      .def_static(
          "forward_runs", [] { return forwards_here > 0; }, "Return True if a split forward runs in this thread.")
      .def_prop_ro("running", &KnownCalls::running, "The replay of the running forward, or None.")
      .def_prop_ro(
          "handler", [](nb::handle self) { return nb::steal(PyCFunction_New(&handler, self.ptr())); },
          "A `__torch_function__` that answers known calls.")
      .def("is_done", &KnownCalls::is_done, "at"_a, "Return True if the forward has made this call.")
      .def("mark_done", &KnownCalls::mark_done, "at"_a)
      .def("matches", &KnownCalls::matches, "at"_a, "args"_a, "kwargs"_a.none(),
           "Return True if these are the arguments of this call.")
      .def("argument_matches", &KnownCalls::argument_matches, "at"_a, "place"_a, "given"_a.none(),
           "Return True if this is the positional argument of this call.")
      .def("surroundings_fit", &KnownCalls::surroundings_fit,
           "Return True if autocast and modes are as for the recorded calls.");
}
