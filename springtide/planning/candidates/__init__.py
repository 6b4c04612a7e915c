"""Pure. Shapes that a job could have, and the Pareto front of them."""
