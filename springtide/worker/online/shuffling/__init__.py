"""Batches of a stream between the workers of a job: who has more than it can train gives to who has time.

A walk: worker/online/ reads, `unit.Unit` keeps or sends (as data/peer_shuffle.py says), `peers.Peers` carries.
"""

from springtide.worker.online.shuffling.record_run import RecordRun as RecordRun
from springtide.worker.online.shuffling.shuffle_setup import open_unit as open_unit
from springtide.worker.online.shuffling.shuffle_unit import ShuffleUnit as ShuffleUnit
from springtide.worker.online.shuffling.shuffle_unit import ShuffleUse as ShuffleUse
