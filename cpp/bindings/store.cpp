#include "bindings.h"

void bind_store(nb::module_&) {}
