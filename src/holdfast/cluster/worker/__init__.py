"""A worker: its exchange of rows and gradients with servers, and its process."""
