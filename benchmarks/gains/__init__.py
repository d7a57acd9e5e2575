"""What it costs a plan to know less: of its network, or of where to cut."""
