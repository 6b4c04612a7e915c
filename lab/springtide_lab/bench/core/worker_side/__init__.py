"""The only folder of lab that processes in the peers' environment can import."""
