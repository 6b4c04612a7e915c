"""Springtide inside a Ray program: python examples/ray_program.py (needs springtide[ray])

Ray starts on this machine unless a cluster runs. The script beside this file trains on Ray with one worker and one
server, and the program continues with the result.
"""

import pathlib

import ray

import springtide.ray
from springtide.domain.spec.elastic_job import RoleWish

ray.init(log_to_driver=False)
status = springtide.ray.run(
    pathlib.Path(__file__).with_name("01_first_loop.py"),
    name="first-loop",
    workers=RoleWish(count=1),
    servers=RoleWish(count=1),
)
print(f"{status.phase}: {status.samples} samples, {status.why}")
