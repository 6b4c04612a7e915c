"""Run the worker's part of a program that is split between workers and data workers."""
