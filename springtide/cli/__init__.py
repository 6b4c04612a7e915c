"""The `springtide` command: `app` has the verbs, one file each; what a job looks like meanwhile is in `view`."""
