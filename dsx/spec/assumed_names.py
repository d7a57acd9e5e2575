"""The fields of an assumption set that expressions of layer definitions and operator tables may name."""

ELEMENT_BYTES = ("activation_bytes", "weight_bytes", "gradient_bytes")
# Flags of how a framework runs an operator, 1 or 0 in an expression.
OPERATOR_FLAGS = ("unfused_cross_entropy",)
ASSUMED = (*ELEMENT_BYTES, *OPERATOR_FLAGS)
