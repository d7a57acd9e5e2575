"""From the config.json of a Hugging Face checkpoint to a model: families are data, one file per `model_type`."""
