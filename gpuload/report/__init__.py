"""What people see of a loader: a live line, a table of text, a page. Draws plain data; measures nothing."""
