"""`Checkpointer`: fast saves of any PyTorch state, without a job."""
