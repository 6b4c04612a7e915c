#include "bindings.h"

void bind_server(nb::module_&) {}
