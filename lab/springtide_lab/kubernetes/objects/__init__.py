"""Pure. Object kinds: schemas, patches, selectors, admission."""
