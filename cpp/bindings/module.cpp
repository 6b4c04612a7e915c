// The Python module. Each file of this folder binds one part; nothing outside it sees nanobind.
#include "bindings/bindings.h"
#include "net/socket.h"

namespace {

// C++ exceptions become the classes of springtide/errors.py, found by name when first thrown.
void raise(const char* name, const char* message) {
  nb::object type = nb::module_::import_("springtide.errors").attr(name);
  PyErr_SetString(type.ptr(), message);
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const springtide::NonFinite& e) {
    raise("NonFiniteGradient", e.what());
  } catch (const springtide::PartlyApplied& e) {
    raise("PartlyApplied", e.what());
  } catch (const springtide::BadInput& e) {
    raise("BadInput", e.what());
  } catch (const springtide::PortTaken& e) {
    raise("PortTaken", e.what());
  } catch (const springtide::GroupChanged& e) {
    raise("GroupChanged", e.what());
  } catch (const springtide::PeerLost& e) {
    raise("ServerUnreachable", e.what());
  } catch (const springtide::WrongOwner& e) {
    raise("WrongOwner", e.what());
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
}
