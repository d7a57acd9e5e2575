"""The human edge: YAML files, names and overrides in, validated specs with SI floats out. No jax here."""
