"""Statistics, tables and plots of a simulation."""
