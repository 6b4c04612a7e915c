"""The API server: requests, storage, watches, access control."""
