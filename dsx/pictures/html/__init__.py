"""A result set as one HTML page that opens without a network: question, answer, pictures, table, evidence."""
