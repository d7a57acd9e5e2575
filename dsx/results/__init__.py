"""Result sets: schema, files and pictures."""
