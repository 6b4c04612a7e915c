"""What `bench shuffle` runs: scene.py says what comes when, crew.py starts producer and workers, picture.py draws."""
