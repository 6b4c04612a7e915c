"""Reproduce Kale: days of traffic in virtual time, and schemes that scale a job with them."""
