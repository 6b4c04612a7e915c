"""Figures and plots of a simulation."""
