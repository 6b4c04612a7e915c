"""Pure. Planning for online jobs, whose data never ends: traffic forecast, worker capacity, and number of workers."""
