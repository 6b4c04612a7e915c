"""Pure. Builds the `tc` arguments that limit a link to the speed of a real network, with a token bucket.

In: Gbit/s. Next: `testing.hosts` and `springtide_lab.bench.cache.shaped_net` apply them at both ends of every cable.
"""

BURST_S = 0.002  # a link of 1 Gbit/s passes bursts of 250 kB; the kernel's segments have 64 kB
LEAST_BURST = 128 << 10
QUEUE_S = 0.05


def shaping(device: str, gbit: float) -> list[str]:
    """Return the arguments of `tc`, for the network namespace of the device."""
    bits = gbit * 1e9
    burst, queue = max(int(bits / 8 * BURST_S), LEAST_BURST), int(bits / 8 * QUEUE_S)
    bucket = ["rate", f"{bits:.0f}bit", "burst", str(burst), "limit", str(queue)]
    return ["qdisc", "replace", "dev", device, "root", "tbf", *bucket]
