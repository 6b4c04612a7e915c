// Compiles a function marked SPRINGTIDE_CLONES for several instruction sets; the loader picks one. The choice
// depends on the machine only, so results do not depend on the number of servers.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SPRINGTIDE_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define SPRINGTIDE_CLONES
#endif
