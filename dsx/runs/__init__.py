"""Run tables: measured training runs, read, completed, and made setups that dsx can price."""
