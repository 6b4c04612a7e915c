"""Runs Springtide on an existing Ray cluster, with one actor per role process.

`submit` creates the job's steward: a detached actor that runs `platforms.agent.agent` and the master.
"""
