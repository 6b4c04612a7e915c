// The Python module. Each file of this folder binds one part; nothing outside it sees nanobind.
#include "bindings/bindings.h"

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // modules and tensors may outlive the interpreter's last sweep
  m.doc() = "The native core: tables, servers, clients.";
  bind_errors(m);
  bind_store(m);
  bind_server(m);
  bind_schedule(m);
  bind_client(m);
  bind_cache(m);
  bind_fused(m);
  bind_secure(m);
  bind_tensors(m);
  bind_distinct(m);
  bind_messages(m);
  bind_envelope(m);
}
