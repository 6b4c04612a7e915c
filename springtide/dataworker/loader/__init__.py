"""`ElasticLoader`: a DataLoader whose workers can be resized, killed and resumed."""
