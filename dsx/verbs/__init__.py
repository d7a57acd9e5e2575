"""What `import dsx` offers: one function for each thing that is asked, and its answer as an object."""
