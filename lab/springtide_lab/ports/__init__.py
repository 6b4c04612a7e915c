"""Run programs of public packages in jobs, and compare them with the programs as they are.

In: a folder in which the user has installed the packages. Out: a table with the changed lines, the quality of each way
to run a program, and whether each sample was trained once. `program` describes a program and its changed lines,
`runner` runs it, `report` prints the table. The packages' code is never part of this repository.
"""
