"""Batches of a stream between the workers of a job: who has more than it can train gives to who has time.

A walk: train/online/ reads, `unit.Unit` keeps or sends (as data/shuffle.py says), `peers.Peers` carries.
"""

from springtide.train.shuffling.opening import open_unit as open_unit
from springtide.train.shuffling.run import Run as Run
from springtide.train.shuffling.unit import ShuffleUse as ShuffleUse
from springtide.train.shuffling.unit import Unit as Unit
