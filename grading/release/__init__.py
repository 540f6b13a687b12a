"""From source/ to release/ and notebooks/: `build` makes them, `check` holds them against what a release must be."""
