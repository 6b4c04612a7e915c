"""Programs whose data set changes: by the loop, or while it is read."""

import numpy as np
import torch
from torch.utils.data import Dataset

from tests.unit.worker.hostile_programs import SAMPLES, Program, at, program

SCALE = 3


class Weighted(Dataset):
    """Samples with a weight that the loop writes."""

    def __init__(self, kind):
        drawn = torch.Generator().manual_seed(3)
        self.raw = torch.randint(0, 10_000, (SAMPLES, 3), generator=drawn)
        self.dense = torch.rand(SAMPLES, 2, generator=drawn)
        self.y = torch.rand(SAMPLES, generator=drawn)
        self.weights = kind([1.0] * SAMPLES)
        self.source = "raw"
        self.words = {}
        self.read = 0

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        raw = self.raw[index] if self.source == "raw" else self.raw[SAMPLES - 1 - index]
        return raw, self.dense[index], self.y[index] * float(self.weights[index])


class OfWeights(Program):
    kind = list

    def dataset(self):
        return Weighted(self.kind)

    def before(self, number):
        if number == 15:
            for index in range(0, SAMPLES, 2):
                self.data.weights[index] = 0.25


@program
class WeightsInAList(OfWeights):
    pass


@program
class WeightsInAnArray(OfWeights):
    kind = np.array


@program
class WeightsInATensor(OfWeights):
    kind = torch.tensor


@program
class WeightsWrittenByData(OfWeights):
    kind = torch.tensor

    def before(self, number):
        if number == 15:
            self.data.weights.data[::2] = 0.25


@program
class SourceSwitched(OfWeights):
    before = at(15, lambda self: setattr(self.data, "source", "other"))


class GrowingWords(Weighted):
    def __getitem__(self, index):
        raw, dense, y = super().__getitem__(index)
        ids = [self.words.setdefault(one % 61, len(self.words)) for one in raw.tolist()]
        return torch.tensor(ids), dense, y


@program
class VocabularyGrownInGetitem(OfWeights):
    def dataset(self):
        return GrowingWords(list)

    def before(self, number):
        pass


class Counting(Weighted):
    def __getitem__(self, index):
        raw, dense, y = super().__getitem__(index)
        self.read += 1
        return raw, dense + (self.read // 200), y


@program
class DataSetCountsReads(OfWeights):
    def dataset(self):
        return Counting(list)

    def before(self, number):
        pass


class OfGlobal(Weighted):
    def __getitem__(self, index):
        raw, dense, y = super().__getitem__(index)
        return raw, dense * SCALE, y


@program
class DataSetReadsAGlobal(OfWeights):
    def dataset(self):
        return OfGlobal(list)

    before = at(15, lambda self: globals().__setitem__("SCALE", 5))
