"""Where roles run. `base` says what a platform must offer; `local` runs them as processes of this machine.

`agent` starts a job on a platform, watches its roles, tells the master who has ended, and shuts everything down.
"""
