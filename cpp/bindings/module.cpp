// The Python module. Each file of this folder binds one part; no other code uses nanobind.
#include "bindings/bindings.h"

namespace {

// Turns C++ exceptions into the classes of springtide/errors.py. A class is looked up by name when it is first thrown.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const springtide::Error& e) {
    nb::object type = nb::module_::import_("springtide.errors").attr(e.python_class());
    PyErr_SetString(type.ptr(), e.what());
  }
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // modules and tensors may outlive the interpreter
  m.doc() = "The native core: tables, servers, clients.";
  nb::register_exception_translator(translate, nullptr);
  bind_store(m);
  bind_server(m);
  bind_schedule(m);
  bind_client(m);
  bind_cache(m);
  bind_payload(m);
  bind_records(m);
  bind_known_calls(m);
  bind_references(m);
}
