"""Result sets: schema, files, pictures."""
