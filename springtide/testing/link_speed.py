"""Pure. How a link is made as slow as a real network's: the words for `tc`, a token bucket of a given speed.

In: Gbit/s. Next: `testing.hosts` and `springtide_lab.bench.cache.shaped_net` say them at both ends of every cable.
"""

BURST_S = 0.002  # a link of 1 Gbit/s lets 250 kB through at once, 64 kB being one segment to the kernel
LEAST_BURST = 128 << 10
QUEUE_S = 0.05


def shaping(device: str, gbit: float) -> list[str]:
    """What follows `tc`, in the namespace of the device."""
    bits = gbit * 1e9
    burst, queue = max(int(bits / 8 * BURST_S), LEAST_BURST), int(bits / 8 * QUEUE_S)
    bucket = ["rate", f"{bits:.0f}bit", "burst", str(burst), "limit", str(queue)]
    return ["qdisc", "replace", "dev", device, "root", "tbf", *bucket]
