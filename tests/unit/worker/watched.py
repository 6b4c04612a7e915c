"""A local job whose loop is watched for a split, as by `springtide explain-split`."""

import functools

from springtide.worker import explain_split, job


class Watcher:
    def on_prepared(self, splitting, source):
        """The test asks the job for its splitting."""

    def on_ready(self):
        """The test looks for itself."""


def join(**settings):
    return job.open_job(settings, functools.partial(explain_split.ObservedJob, explainer=Watcher()))
