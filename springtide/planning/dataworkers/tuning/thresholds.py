"""Pure. The numbers that tuning compares with, each with its reason. Used by all files of this package."""

LEAST_SHARE = 0.1
"""Of a trainer's time in what data workers could do. With less they bring a ninth at most: not worth the cores."""
WORTH = 1.05
"""Times the speed without data workers: for less than a twentieth their cores are better left to others."""
WAITS_LITTLE = 0.05
"""Share of a consumer's time spent waiting up to which its queue is ideal: the producer is as fast as the consumer."""
WAITS = 0.1
"""Share from which a job that was tuned counts as short of data: twice the other, so that noise starts nothing."""
FULL = 0.75
"""Fill of a queue from which more data workers cannot help: batches wait, not the consumer; the rest is under way."""
LINEAR = 0.85
"""Of the rate a core seen so far: as many batches a core as smaller sizes made, less what an interval's noise is."""
RETURNS = 0.5
"""Of the growth that more data workers should have brought: with less something else is the limit."""
MARGIN = 0.05
"""Made beyond what is needed: batches are not all alike. No more: who waits as little as that is fed well."""
SPARE = 0.25
"""Made beyond what is needed before data workers are let go: more than MARGIN, so that none goes as soon as it came."""
FASTEST = 2.0
"""Times as many data workers at one step: the next is assumed to bring what the last did, then it is looked at."""
SLOWER = 0.05
"""Loss of speed from which a trainer has too few cores: twice the noise of an interval."""
FASTER = 0.05
"""Gain of speed for which a trainer keeps a core that it was given more."""
HOT = 0.85
"""Of its cores in use: only then is a trainer that takes no more batches short of cores, and not of the network."""
PATIENCE = 2
"""Intervals in a row that must say the same before a job that was tuned is changed."""
TUNE_FOR = 20
"""Intervals after which tuning must have brought something: 10 minutes; the largest walk seen took 17."""
LATE = 4
"""Intervals that data workers may take to come before tuning goes on with those that did."""
CHANGED = 2.0
"""Times another speed, or another share of time: the program does something else now. Busy machines make it 1.5."""
STRANGE_FOR = 4
"""Intervals in a row that it must do so: a checkpoint or an evaluation is no other program."""
FRAGMENT = 0.25
"""Of a unit of cores: the least that a first data worker is started with where a whole unit is not free."""
