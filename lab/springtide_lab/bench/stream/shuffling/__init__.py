"""What `bench shuffle` runs: scene.py says what comes when, processes.py starts producer and workers, picture.py
draws.
"""
