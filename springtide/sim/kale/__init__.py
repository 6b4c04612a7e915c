"""The reproduction of Kale: traffic, capacity, and who scales how, in virtual time."""
