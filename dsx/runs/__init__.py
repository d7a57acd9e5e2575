"""Run tables: read measured training runs, fill their missing values, and turn them into setups that dsx can price."""
