"""Commands that run or change a job: `run`, `submit`, `scale`, `stop`, `export`, `checkpoints`."""
