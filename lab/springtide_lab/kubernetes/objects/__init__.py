"""Pure. Kinds of objects: schemas, patches, selectors, admission."""
