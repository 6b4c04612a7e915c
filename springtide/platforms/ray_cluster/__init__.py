"""Runs Springtide on an existing Ray cluster, with one actor per role process.

`job.submit` creates the job's steward. The steward is a detached actor that runs `platforms.agent.agent` and the
master. Its platform (`job.platform`) creates an actor per role (`job.role_actor`), which starts the process on its
node, forwards its log and ends with it. `job.job_handle` queries a steward from outside. `cluster` connects to Ray and
lists resources. Ray is imported only together with these modules.
"""
