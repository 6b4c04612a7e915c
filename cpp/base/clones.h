// A function marked SPRINGTIDE_CLONES is compiled for several instruction sets; the fittest is chosen at
// load. One machine's choice never depends on the job, so results stay the same for any number of servers.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SPRINGTIDE_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define SPRINGTIDE_CLONES
#endif
