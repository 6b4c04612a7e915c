"""Exchange stream batches between workers: an overloaded worker sends batches to workers with free time.

Walk: worker/online/ reads, `shuffle_unit.ShuffleUnit` keeps or sends by the rules of data/peer_shuffle.py, and
`peers.Peers` transports.
"""

from springtide.worker.online.shuffling.record_run import RecordRun as RecordRun
from springtide.worker.online.shuffling.shuffle_setup import open_unit as open_unit
from springtide.worker.online.shuffling.shuffle_unit import ShuffleUnit as ShuffleUnit
from springtide.worker.online.shuffling.shuffle_unit import ShuffleUse as ShuffleUse
