"""The simulated cluster: jobs, data workers, systems compared, the optimum."""
