"""The fields of an assumption set that expressions of layer definitions and operator tables may name: element sizes."""

ELEMENT_BYTES = ("activation_bytes", "weight_bytes", "gradient_bytes", "cross_entropy_bytes")
