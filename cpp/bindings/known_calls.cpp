// Known torch calls of a split forward(). Compares each call of user code with the recorded calls, and answers it.
//
// A forward makes dozens of known calls for every batch, each after a backward pass has emptied the caches. So the
// comparison reads a few compact templates, and runs no Python code for the usual call.
#include "bindings/known_calls.h"

#include <array>
#include <cstring>
#include <deque>
#include <utility>

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

// A tensor in the result of a call.
struct Part {
  Py_ssize_t slot;
  Py_ssize_t crosses;  // index among the received values; -1 if the part is not sent
  bool is_read;        // true if a known call reads the part, so that user code gets a promise
};

struct Call {
  nb::object function;
  std::vector<Template> args;
  std::vector<std::pair<nb::object, Template>> kwargs;
  std::vector<Part> parts;  // empty if Python code answers the call
  bool is_tuple;            // true if the result is a tuple of the parts; else it is the only part
  bool anytime;             // true if forward() may make the call at any time
};

// The arguments of a call: positional ones, of which `self` may come separately, and named ones.
struct Arguments {
  PyObject* self;  // may be null
  PyObject* const* rest;
  Py_ssize_t count;  // without self
  PyObject* dict;    // named arguments, or null
  PyObject* names;   // names of the arguments after the positional ones, or null

  Py_ssize_t positional() const { return count + (self != nullptr); }
  Py_ssize_t named() const { return dict ? PyDict_GET_SIZE(dict) : names ? PyTuple_GET_SIZE(names) : 0; }
  PyObject* operator[](size_t at) const { return self == nullptr ? rest[at] : at == 0 ? self : rest[at - 1]; }
};

// Returns the slots of promises that something else holds or has given attributes. If C++ holders cannot be counted,
// returns all slots. `uses` counts the holders of a tensor in C++, and `attributes` is the number of attributes of a
// new promise.
nb::list held_promises(nb::list promises, nb::object uses, Py_ssize_t attributes) {
  const Py_ssize_t count = PyList_GET_SIZE(promises.ptr());
  std::vector<bool> held(count, uses.is_none());
  const auto mark = [&](auto&& is_held) {
    for (Py_ssize_t slot = 0; slot < count; ++slot) {
      PyObject* promise = PyList_GET_ITEM(promises.ptr(), slot);
      if (promise != Py_None && !held[slot]) held[slot] = is_held(promise);
    }
  };
  // Each loop reads memory that is not in the CPU caches. A short loop can wait for many reads at the same time.
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

class KnownCalls;
thread_local std::vector<KnownCalls*> running_here;  // of the forwards that run in this thread, the innermost last

// Methods of tensors, each with the name of the function that torch passes on for it. Promises have methods of their
// own for these, which answer known calls without torch's parsing of arguments.
constexpr std::pair<const char*, const char*> kMethods[] = {
    {"__getitem__", "__getitem__"},
    {"__add__", "add"},
    {"__sub__", "sub"},
    {"__mul__", "mul"},
    {"__truediv__", "div"},
    {"__mod__", "remainder"},
    {"__and__", "__and__"},
    {"__or__", "__or__"},
    {"__xor__", "__xor__"},
    {"__lshift__", "__lshift__"},
    {"__rshift__", "__rshift__"},
    {"__lt__", "lt"},
    {"__le__", "le"},
    {"__gt__", "gt"},
    {"__ge__", "ge"},
    {"remainder", "remainder"},
    {"t", "t"},
    {"contiguous", "contiguous"},
    {"to", "to"},
    {"long", "long"},
    {"float", "float"},
    {"clamp", "clamp"},
    {"mean", "mean"},
    {"sum", "sum"},
    {"view", "view"},
    {"reshape", "reshape"},
    {"unsqueeze", "unsqueeze"},
};
constexpr size_t kMethodCount = std::size(kMethods);
PyObject* tensor_type = nullptr;
std::array<PyObject*, kMethodCount> method_names{}, own_methods{}, passed_on{};  // passed_on: functions of torch

// All known calls of a split. A forward runs between `begin` and `end`; forwards may nest.
class KnownCalls {
 public:
  // calls: (function, templates of arguments, (name, template) of keyword arguments, parts, is_tuple, anytime) of each.
  // kinds: torch.Tensor, then all types of constant tensors. surroundings: (function, expected result) of each.
  // outside: runs a call that no forward makes.
  KnownCalls(nb::list calls, nb::tuple kinds, nb::list surroundings, nb::object outside)
      : kinds_(std::move(kinds)), outside_(std::move(outside)) {
    for (nb::handle told : calls) {
      const auto fields = nb::cast<nb::tuple>(told);
      Call call{nb::object(fields[0]), {}, {}, {}, nb::cast<bool>(fields[4]), nb::cast<bool>(fields[5])};
      for (nb::handle part : nb::cast<nb::tuple>(fields[3])) {
        const auto [slot, crosses, is_read] = nb::cast<std::tuple<Py_ssize_t, Py_ssize_t, bool>>(part);
        call.parts.push_back({slot, crosses, is_read});
      }
      for (nb::handle spec : nb::cast<nb::tuple>(fields[1])) call.args.push_back(read_template(spec));
      for (nb::handle named : nb::cast<nb::tuple>(fields[2])) {
        call.kwargs.emplace_back(nb::object(named[0]), read_template(named[1]));
      }
      calls_.push_back(std::move(call));
    }
    for (nb::handle told : surroundings) surroundings_.emplace_back(nb::object(told[0]), nb::object(told[1]));
  }

  void begin(nb::object replay, nb::list promises, nb::tuple crossing, bool answers) {
    nb::list values = replay.attr("values");
    nb::dict real = replay.attr("real"), free = replay.attr("free");
    nb::object size = replay.attr("size");
    forwards_.push_back({std::move(replay), std::move(values), std::move(promises), std::move(real), std::move(free),
                         std::move(crossing), std::move(size), std::vector<bool>(calls_.size()), 0, 0,
                         PyThread_get_thread_ident(), answers});
    running_here.push_back(this);
    advance(0);
  }

  void end() {
    if (forwards_.empty()) return;
    const Forward gone = std::move(forwards_.back());  // destroy its objects last, because this may run Python code
    forwards_.pop_back();
    if (!running_here.empty()) running_here.pop_back();
  }

  nb::object running() const { return forwards_.empty() ? nb::none() : forwards_.back().replay; }

  size_t used() { return now().used; }

  bool is_done(size_t at) { return now().done.at(at); }

  void mark_done(size_t at) {
    now().done.at(at) = true;
    if (at == now().expected) advance(at + 1);
  }

  bool matches(size_t at, nb::handle args, nb::handle kwargs) {
    if (!PyTuple_Check(args.ptr()) || !(kwargs.is_none() || PyDict_Check(kwargs.ptr()))) return false;
    return matches(at, Arguments{nullptr, reinterpret_cast<PyTupleObject*>(args.ptr())->ob_item,
                                 PyTuple_GET_SIZE(args.ptr()), kwargs.is_none() ? nullptr : kwargs.ptr(), nullptr});
  }

  bool argument_matches(size_t at, size_t place, nb::handle given) {
    return fits(calls_.at(at).args.at(place), given.ptr());
  }

  // Returns false if torch would now compute a call in another way than during the recording (autocast, dispatch
  // modes).
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
    if (is_answered(at) && equal(func.ptr(), calls_[at].function.ptr()) && matches(at, args, kwargs) &&
        surroundings_fit()) {
      return answer(at);
    }
    return now().replay.attr("call")(func, args, kwargs);
  }

  // Returns the answer to a method call if it is the next known call; else null.
  nb::object answer_method(PyObject* function, const Arguments& given) {
    if (forwards_.empty() || now().thread != PyThread_get_thread_ident()) return {};
    const size_t at = now().expected;
    const bool is_known = is_answered(at) && calls_[at].function.ptr() == function && matches(at, given) &&
                          torch_function_fits() && surroundings_fit();
    return is_known ? answer(at) : nb::object();
  }

 private:
  struct Forward {
    nb::object replay;  // the ForwardReplay
    nb::list values, promises;
    nb::dict real, free;
    nb::tuple crossing;
    nb::object size;
    std::vector<bool> done;
    size_t used;      // received values that this class has given to user code
    size_t expected;  // the first call, in the order of the recording, that the forward has not made
    unsigned long thread;
    bool answers;  // false if every call is computed and compared
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

  // Returns false if torch would not pass a call of a promise on as usual: modes, or a call that has disabled it.
  static bool torch_function_fits() {
    static PyObject* const stack = Py_NewRef(nb::module_::import_("torch._C").attr("_len_torch_function_stack").ptr());
    static PyObject* const enabled =
        Py_NewRef(nb::module_::import_("torch._C").attr("_is_torch_function_enabled").ptr());
    return !truth(PyObject_CallNoArgs(stack)) && truth(PyObject_CallNoArgs(enabled));
  }

  bool is_answered(size_t at) { return now().answers && at < calls_.size() && !calls_[at].parts.empty(); }

  // Answers a known call with received values and promises.
  nb::object answer(size_t at) {
    Forward& forward = now();
    const Call& call = calls_[at];
    nb::object tuple = call.is_tuple ? nb::steal(PyTuple_New(std::ssize(call.parts))) : nb::object();
    for (size_t i = 0; i < call.parts.size(); ++i) {
      const Part& part = call.parts[i];
      nb::object given = nb::borrow(forward.promises[part.slot]);
      if (part.crosses < 0) {
        forward.values[part.slot] = given;
      } else {
        const nb::object value = nb::borrow(forward.crossing[part.crosses]);
        forward.real[nb::int_(part.slot)] = nb::make_tuple(value, attribute(value.ptr(), names().version));
        ++forward.used;
        if (part.is_read) {
          forward.values[part.slot] = given;
        } else {
          given = value;
        }
      }
      if (!call.is_tuple) {
        mark_done(at);
        return given;
      }
      PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), given.release().ptr());
    }
    mark_done(at);
    return tuple;
  }

  bool matches(size_t at, const Arguments& given) {
    const Call& call = calls_.at(at);
    if (given.positional() != std::ssize(call.args) || given.named() != std::ssize(call.kwargs)) return false;
    for (size_t place = 0; place < call.args.size(); ++place) {
      if (!fits(call.args[place], given[place])) return false;
    }
    for (const auto& [name, spec] : call.kwargs) {
      if (given.dict != nullptr ? !holds(given.dict, name.ptr(), spec) : !holds(given, name.ptr(), spec)) return false;
    }
    return true;
  }

  bool holds(const Arguments& given, PyObject* key, const Template& spec) {
    for (Py_ssize_t at = 0; at < given.named(); ++at) {
      if (equal(PyTuple_GET_ITEM(given.names, at), key)) return fits(spec, given.rest[given.count + at]);
    }
    return false;
  }

  // Returns true if an input is unchanged and requires no gradient.
  bool is_unwritten(Forward& forward, Py_ssize_t slot) {
    const nb::object known = nb::borrow(PyDict_GetItemWithError(forward.real.ptr(), nb::int_(slot).ptr()));
    if (known.is_valid() && PyTuple_CheckExact(known.ptr())) {
      PyObject* leaf = PyTuple_GET_ITEM(known.ptr(), 0);
      PyObject* version = PyTuple_GET_ITEM(known.ptr(), 1);
      const Names& n = names();
      if (version == Py_None) return !truth(attribute(leaf, n.changed));
      if (PyLong_CheckExact(version)) {
        return equal(attribute(leaf, n.version).ptr(), version) && !truth(attribute(leaf, n.requires_grad));
      }
    }
    return nb::cast<bool>(forward.replay.attr("is_unwritten")(slot));
  }

  bool is_kind(PyObject* given) const {
    for (nb::handle kind : kinds_) {
      if (reinterpret_cast<PyObject*>(Py_TYPE(given)) == kind.ptr()) return true;
    }
    return false;
  }

  static bool is_still(nb::handle constant, PyObject* given) {
    return nb::cast<const TensorConstant&>(constant).is_still(given);
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
        return spec.kind == Kind::slot || is_unwritten(forward, spec.number);
      }
      case Kind::free:
        return reinterpret_cast<PyObject*>(Py_TYPE(given)) == kinds_[0].ptr() &&
               is_still(forward.free[spec.value], given);
      case Kind::constant:
        return is_kind(given) && is_still(spec.value, given);
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
  std::deque<Forward> forwards_;  // a deque, because comparing an argument may start another forward
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

// The handler is a plain C function, because torch asks it for `__self__`, and other callables answer that with an
// AttributeError.
PyMethodDef handler{"__torch_function__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&handle_call)),
                    METH_FASTCALL, "Handle a torch call that takes a promise."};

// A method of promises. User code may have replaced torch's own method, so it is looked up for each call.
template <size_t method>
PyObject* call_method(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* named) {
  try {
    const nb::object found = attribute(tensor_type, method_names[method]);
    if (!running_here.empty() && found.ptr() == own_methods[method]) {
      nb::object answer = running_here.back()->answer_method(passed_on[method], {self, args, count, nullptr, named});
      if (answer.is_valid()) return answer.release().ptr();
    }
    std::vector<PyObject*> all{self};
    all.insert(all.end(), args, args + count + (named != nullptr ? PyTuple_GET_SIZE(named) : 0));
    return PyObject_Vectorcall(found.ptr(), all.data(), static_cast<size_t>(count) + 1, named);
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <size_t... method>
std::array<PyMethodDef, kMethodCount> definitions_of(std::index_sequence<method...>) {
  return {PyMethodDef{kMethods[method].first,
                      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_method<method>)),
                      METH_FASTCALL | METH_KEYWORDS, "Answer a known call, or call the method of torch.Tensor."}...};
}

// Gives a class of promises methods for those of these functions that torch passes on for a method of a tensor.
void add_methods(nb::handle promise_type, const nb::set& functions) {
  static std::array<PyMethodDef, kMethodCount> definitions = definitions_of(std::make_index_sequence<kMethodCount>());
  if (tensor_type == nullptr) {
    const nb::object type = nb::module_::import_("torch").attr("Tensor");
    for (size_t method = 0; method < kMethodCount; ++method) {
      method_names[method] = PyUnicode_InternFromString(kMethods[method].first);
      own_methods[method] = Py_NewRef(type.attr(kMethods[method].first).ptr());
      passed_on[method] = Py_NewRef(type.attr(kMethods[method].second).ptr());
    }
    tensor_type = Py_NewRef(type.ptr());
  }
  for (size_t method = 0; method < kMethodCount; ++method) {
    if (!functions.contains(nb::handle(passed_on[method]))) continue;
    const nb::object made =
        nb::steal(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(promise_type.ptr()), &definitions[method]));
    nb::setattr(promise_type, kMethods[method].first, made);
  }
  // `__getitem__` makes the class a sequence for C code, which torch.Tensor is not.
  auto* const type = reinterpret_cast<PyTypeObject*>(promise_type.ptr());
  auto* const own = reinterpret_cast<PyTypeObject*>(tensor_type);
  if (type->tp_as_sequence != nullptr) {
    type->tp_as_sequence->sq_item = own->tp_as_sequence != nullptr ? own->tp_as_sequence->sq_item : nullptr;
  }
}

}  // namespace

void bind_known_calls(nb::module_& m) {
  m.def("held_promises", &held_promises, "promises"_a, "uses"_a.none(), "attributes"_a,
        "Slots of promises that something besides this list holds, or that have more attributes.");
  m.def("add_methods", &add_methods, "promise_type"_a, "functions"_a,
        "Give a class of promises methods that answer known calls of these functions.");
  nb::class_<TensorConstant>(m, "TensorConstant", "A copy of a tensor that the moved part reads.")
      .def(nb::init<nb::object>(), "value"_a)
      .def_prop_ro("value", &TensorConstant::value)
      .def("is_still", &TensorConstant::is_still, "given"_a,
           "Return True if the tensor has these bits and requires no gradient.");
  nb::class_<KnownCalls>(m, "KnownCalls", "The known torch calls of a split forward().")
      .def(nb::init<nb::list, nb::tuple, nb::list, nb::object>(), "calls"_a, "kinds"_a, "surroundings"_a, "outside"_a,
           "calls: (function, templates, (name, template) of keyword arguments, parts, is_tuple, anytime) of each.")
      .def("begin", &KnownCalls::begin, "replay"_a, "promises"_a, "crossing"_a, "answers"_a,
           "Begin a forward in this thread. answers: answer calls without Python code.")
      .def("end", &KnownCalls::end, "End the forward.")
      .def_static(
          "forward_runs", [] { return !running_here.empty(); }, "Return True if a split forward runs in this thread.")
      .def_prop_ro("running", &KnownCalls::running, "The replay of the running forward, or None.")
      .def_prop_ro(
          "handler", [](nb::handle self) { return nb::steal(PyCFunction_New(&handler, self.ptr())); },
          "A `__torch_function__` that answers known calls.")
      .def_prop_ro("used", &KnownCalls::used, "Number of received values that were given without Python code.")
      .def("is_done", &KnownCalls::is_done, "at"_a, "Return True if the forward has made this call.")
      .def("mark_done", &KnownCalls::mark_done, "at"_a)
      .def("matches", nb::overload_cast<size_t, nb::handle, nb::handle>(&KnownCalls::matches), "at"_a, "args"_a,
           "kwargs"_a.none(), "Return True if these are the arguments of this call.")
      .def("argument_matches", &KnownCalls::argument_matches, "at"_a, "place"_a, "given"_a.none(),
           "Return True if this is the positional argument of this call.")
      .def("surroundings_fit", &KnownCalls::surroundings_fit,
           "Return True if autocast and modes are as for the recorded calls.");
}
