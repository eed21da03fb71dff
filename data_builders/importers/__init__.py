"""Other systems' files to timelines, one module per system; each says what its source does not provide."""
