#include "bindings.h"

void bind_client(nb::module_&) {}
