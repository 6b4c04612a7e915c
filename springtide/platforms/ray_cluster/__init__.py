"""Springtide on Ray: roles as actors that hold their processes, on any cluster that runs already.

`submitting` makes a job's steward, a detached actor that runs `platforms.agent.agent` and its master; the steward's
platform (`platform`) makes an actor for every role (`holder`), which starts the role's process on its node, prints its
log and goes with it. `reach` asks a steward from outside. `cluster` connects, and says what there is. Ray itself is
imported when one of these is, not before.
"""
