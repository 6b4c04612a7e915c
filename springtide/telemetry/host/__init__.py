"""The machine that a process runs on: cgroups, memory, disks, file systems."""
