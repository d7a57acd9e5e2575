"""An allocation of bandwidth as commands of Open vSwitch."""
