// Connections belong to the process that made them. A forked child (a data loader's worker) closes its copies
// at once, so that a server sees the parent go when it goes, and never hears from the child.
#pragma once

namespace springtide {

void close_in_children(int fd);  // from now until forget_in_children
void forget_in_children(int fd);

}  // namespace springtide
