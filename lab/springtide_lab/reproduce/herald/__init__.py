"""`springtide reproduce herald`: the figures of Herald (004) from this code, beside the paper's own.

`preset` has the paper's defaults and streams; `popularity` (Figs. 3, 6, 10), `vanilla` (what plain caches transmit,
and why), `counts` (what the native scheduler transmits), `timing` (how long an iteration takes, from measured costs)
are used by `rows_counted` and `rows_timed`; `reproduction` puts rows, pictures and the page together.
"""
