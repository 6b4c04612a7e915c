// Closes inherited sockets in forked children (data loader workers). Connections belong to the process that
// made them: a server then notices when the parent exits.
#pragma once

namespace springtide {

void close_in_children(int fd);  // from now until forget_in_children
void forget_in_children(int fd);

}  // namespace springtide
