"""The dashboard: a small web server that shows jobs to people. The server reads the data that masters, brains and run
folders publish.

A request goes `server -> access -> app -> endpoints -> job_reader` (or `plan_explorer`, `brain_reader`, `control`). The
front end is in the folder `dashboard` of the repository; its built files are in `static`.
"""
