"""Converts the config.json of a Hugging Face checkpoint to a model. Families are data: one file per `model_type`."""
