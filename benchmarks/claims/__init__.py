"""The statements of arXiv 2410.00273 that dsx is compared with, each with its numbers and a verdict."""
