"""A job in a browser: one page, no build step, served by the standard library. It looks, and changes nothing."""
