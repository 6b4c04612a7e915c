"""Commands that show a job: `status`, `top`, `events`, `metrics`, `dashboard`."""
